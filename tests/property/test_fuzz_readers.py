"""Whatever is done to a file: a trace that invents nothing, or one error of one line, and soon."""

import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.edits import edited, swapped
from tests.fuzz.seeds import SEEDS, write

from meshscope.analyze import load_trace
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import MeshscopeError

MOST_SECONDS = 20
IN_JSON = ("kineto", "merged", "chrome_pairs", "flight_recorder_json", "nccl_inspector",
           "pipeline_visualiser")  # fmt: skip
FEW = settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])


@contextmanager
def soon() -> Iterator[None]:
    """Fail what takes longer than any small file may take."""

    def too_late(*_: object) -> None:
        raise TimeoutError(f"not read within {MOST_SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read(files: Mapping[str, bytes]) -> None:
    """Read files, and fail where they are neither read well nor refused in one line."""
    with tempfile.TemporaryDirectory() as folder, soon():
        try:
            trace = load_trace(write(Path(folder) / "input", files))
            # Large tables may be on disk, in the folder of the input.
            rows = {name: table.num_rows for name, table in trace.tables.items()}
        except MeshscopeError as error:
            refusal = str(error)
        else:
            check(trace, rows, files)
            return
    assert refusal.isprintable()


def check(trace: Trace, rows: Mapping[str, int], files: Mapping[str, bytes]) -> None:
    """Fail on rows that no input can have given, and on times that run backwards."""
    values = sum(content.count(b"{") + content.count(b",") for content in files.values())
    assert max(rows.values()) <= max(values, 200)
    assert len(set(trace.ranks)) == len(trace.ranks)
    for name in ("step", "span", "kernel", "op"):
        assert (trace.frame(name)["dur_ns"] >= 0).all()
    for name in ("collective", "p2p"):
        frame = trace.frame(name)
        ended = frame[frame["end_ns"].notna()]
        assert (ended["end_ns"] >= ended["start_ns"]).all()


@pytest.mark.parametrize("name", SEEDS)
def test_edited_bytes(name):
    """A damaged file would end in a traceback, hang, or make up rows."""
    files = SEEDS[name]()

    @FEW
    @given(st.data())
    def check_one(data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(sorted(files)))
        read({**files, victim: data.draw(edited(files[victim]))})

    check_one()


@pytest.mark.parametrize("name", IN_JSON)
def test_values_of_other_kinds(name):
    """A version that writes a key otherwise would end in a traceback or in wrong rows."""
    files = SEEDS[name]()

    @FEW
    @given(st.data())
    def check_one(data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(sorted(files)))
        read({**files, victim: data.draw(swapped(files[victim]))})

    check_one()


def test_manifests_with_values_of_other_kinds():
    """A hand-edited or forged manifest would end in a traceback."""
    files = SEEDS["capture"]()
    manifests = sorted(name for name in files if name.endswith(".json"))

    @FEW
    @given(st.data())
    def check_one(data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(manifests))
        one_line = b" ".join(files[victim].split(b"\n"))
        read({**files, victim: data.draw(swapped(one_line))})

    check_one()
