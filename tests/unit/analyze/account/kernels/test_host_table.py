"""What the hosts did: operators by their own time, and annotations projected to the device."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.kineto_files import complete, launched, operator, step, write

from meshscope.analyze.account.kernels.host_table import (
    annotation_sums,
    host_operators,
    host_time,
    self_times,
)
from meshscope.analyze.output.json import kernels_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text import kernels_document
from meshscope.analyze.read import import_trace


def note(name, ts, dur, tid=1):
    """Return one annotation of the program."""
    return complete("user_annotation", name, ts, dur, tid=tid)


def test_a_trace_of_the_host_alone_gives_its_operators(tmp_path):
    """Fails when a run on CPUs gives nothing but the word that there are no kernels."""
    events = [step(1, 0, 1_000), operator("aten::linear", 100, 500), operator("aten::mm", 200, 300)]
    trace = import_trace(write(tmp_path / "rank0.json", events))
    rows = host_operators(trace)[["operator", "calls", "total_ns", "self_ns"]].to_numpy().tolist()
    assert rows == [["aten::mm", 1, 300_000, 300_000], ["aten::linear", 1, 500_000, 200_000]]
    (row,) = host_time(trace).to_dict("records")
    assert (row["operator_ns"], row["outside_ns"]) == (500_000, 500_000)
    text = to_plain(kernels_document(kernels_to_json(trace)))
    for words in ("aten::linear", "Where the host was", "in neither ms"):
        assert words in text


def test_steps_without_a_record_of_the_host_are_not_its_time(tmp_path):
    """Fails when two steps that a job records in depth count with all others, in which the host then does nothing."""
    events = [step(at, 1_000 * at, 1_000) for at in range(5)]
    events += [operator("aten::mm", 2_100, 300), operator("aten::add", 3_100, 100)]
    (row,) = host_time(import_trace(write(tmp_path / "rank0.json", events))).to_dict("records")
    assert (row["step_ns"], row["operator_ns"]) == (2_000_000, 400_000)


def test_annotations_are_projected_to_the_device(tmp_path):
    """Fails when a range of a program is as long as its launches, not as its work on the device."""
    events = [step(1, 0, 10_000), note("forward", 100, 50), note("inner", 120, 20)]
    events += launched("gemm", 110, 1_000, 500, 1) + launched("gemm", 125, 1_600, 400, 2)
    events += launched("late", 300, 5_000, 100, 3)
    events += [note("forward", 400, 10), note("forward", 105, 30, tid=2)]
    rows = annotation_sums(import_trace(write(tmp_path / "rank0.json", events))).set_index(
        "annotation"
    )
    assert rows.loc["forward"].tolist() == [3, 90_000, 2, 1_000_000, 900_000, 1]
    assert rows.loc["inner"].tolist() == [1, 20_000, 1, 400_000, 400_000, 1]
    assert not rows.index.str.startswith("ProfilerStep").any()


@st.composite
def _nested(draw, depth=0):
    """Return intervals that nest, as start and length, and the time that they take."""
    rows, at = [], 0
    for _ in range(draw(st.integers(0, 3))):
        inner, length = draw(_nested(depth + 1)) if depth < 3 else ([], 0)
        own = draw(st.integers(1, 5))
        rows += [(at, length + own), *((at + start, dur) for start, dur in inner)]
        at += length + own + draw(st.integers(0, 2))
    return rows, at


@given(_nested())
def test_own_times_add_up(nested):
    """Fails when time of an operator counts for two, or for none."""
    rows, _ = nested
    start = np.array([row[0] for row in rows], dtype=np.int64)
    dur = np.array([row[1] for row in rows], dtype=np.int64)
    covered = len({at for begin, length in rows for at in range(begin, begin + length)})
    assert self_times(start, dur).sum() == covered
