"""Copies that no compute hides: how long, of which kind, and what helps against that kind."""

import pytest
from tests.kineto_files import complete, launched, step, write

from meshscope.analyze import diagnose, load_trace

LENGTH = 10_000


def findings(tmp_path, name, *, dur=3000, size=1 << 20, at=6500):
    """Return what is found of four steps with 60 % compute and a copy."""
    events = []
    for number in range(4):
        begin = number * LENGTH
        events += [
            step(number, begin, LENGTH),
            *launched("gemm", begin + 5, begin + 100, 6000, number + 1),
        ]
        place = {"device": 0, "stream": 9, "correlation": 0, "bytes": size}
        events.append(complete("gpu_memcpy", name, begin + at, dur, tid=9, pid=0, **place))
    trace = load_trace(write(tmp_path / "rank0.json", events))
    return [one for one in diagnose(trace).findings if one.kind == "memory_copy"]


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "to_device"),
        ("Memcpy DtoH (Device -> Pinned)", "to_host"),
        ("Memcpy DtoD (Device -> Device)", "on_device"),
        ("Memcpy PtoP (Device -> Device)", "between_devices"),
    ],
)
def test_copies_are_named_with_their_remedy(tmp_path, name, remedy):
    """Fails when a step of which a third is copying is said to cost nothing."""
    (found,) = findings(tmp_path, name)
    assert (found.severity, round(found.cost_frac, 2)) == ("critical", 0.3)
    (line,) = [one for one in found.evidence if one.code.startswith("memory_copy")]
    assert (line.values["name"], line.values["copies"], line.values["size_bytes"]) == (
        name,
        4,
        4 << 20,
    )
    assert found.remedy.code == f"memory_copy.remedy_{remedy}"


def test_unknown_bytes_are_not_zero(tmp_path):
    """Fails when copies are said to have moved 0 bytes."""
    (found,) = findings(tmp_path, "Memcpy HtoD", size=None)
    assert "bytes" not in str(found.evidence[0])


def test_copies_that_compute_hides_cost_nothing(tmp_path):
    """Fails when an overlapped copy is called a loss."""
    assert findings(tmp_path, "Memcpy HtoD", at=1000) == []
