"""A real trace of a GPU as a deep trace: the run holds what an import of the file gives."""

import gzip
import json

import pytest
from tests.deep_run import OFFSET_NS, SETTINGS, add_trace, change_manifest

from meshscope.analyze import load_trace
from meshscope.analyze.account.kernels.breakdown import device_breakdown
from meshscope.analyze.account.kernels.table import kernel_report
from meshscope.analyze.read import import_trace
from meshscope.probe.recording.record_heads import collective_head
from meshscope.probe.recording.recorder import Recorder
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.terms import Axis

pytestmark = pytest.mark.traces

HOOK_NS = 2_000
"""How long before the launch of its kernel a collective is noted."""


@pytest.fixture(scope="module")
def imported(traces_dir):
    """Return the file of one rank of a real job, and what an import of it gives."""
    file = traces_dir / "amd_hpctraining" / "split" / "rank0_trace.json.gz"
    return file, import_trace(file)


@pytest.fixture(scope="module")
def run(imported, tmp_path_factory):
    """Return a run with the steps and collectives of that rank, and its trace of two steps."""
    file, alone = imported
    path = create_run(tmp_path_factory.mktemp("runs"), "run", {"world_size": 1})
    recorder = Recorder(path, 0, settings=SETTINGS)
    group = recorder.register_group("g", [0], "data", Axis.DP)
    kernel = alone.frame("kernel")
    moving = kernel[kernel["category"] == "communication"].sort_values("launch_ns")
    for seq, (step, launch_ns) in enumerate(zip(moving["step"], moving["launch_ns"], strict=True)):
        recorder.step = int(step)
        recorder.issue_collective(collective_head(group, 0, -1), seq, 8, int(launch_ns) - HOOK_NS)
    steps = alone.frame("step")
    for row in steps.itertuples():
        recorder.record_step(int(row.step), int(row.start_ns), int(row.dur_ns), 1)
    recorder.close()
    start_ns = int(steps["start_ns"].min())
    change_manifest(path, 0, clock_pairs=[[start_ns, start_ns + OFFSET_NS, 50]])
    content = json.loads(gzip.decompress(file.read_bytes()))
    events = content.pop("traceEvents")
    add_trace(
        path, 0, [9, 10, 11], events=events, header=content | {"baseTimeNanoseconds": OFFSET_NS}
    )
    return path


def rows_of(trace, name, columns):
    """Return the rows in steps with the text of their names, sorted."""
    texts = trace.frame("name").set_index(["rank", "name_id"])["name"]
    rows = trace.rank_frame(name, 0)
    rows = rows[rows["step"] >= 0]
    keys = [(0, name_id) for name_id in rows["name_id"]]
    rows = rows[columns].assign(name=texts.reindex(keys).to_numpy())
    if "category" in columns:
        rows = rows.astype({"category": str})
    return rows.sort_values(["start_ns", "name", *columns], ignore_index=True)


@pytest.mark.parametrize(
    ("table", "columns"),
    [
        ("kernel", ["step", "start_ns", "dur_ns", "category", "stream", "launch_ns"]),
        ("op", ["step", "start_ns", "dur_ns", "thread"]),
        ("runtime_call", ["step", "start_ns", "dur_ns", "thread"]),
        ("annotation", ["step", "start_ns", "dur_ns", "thread", "device"]),
    ],
)
def test_the_run_holds_the_events_of_the_file(imported, run, table, columns):
    """Fails if an event of a step is lost, moved, or put into another step."""
    found = rows_of(load_trace(run), table, columns)
    assert len(found)
    assert found.equals(rows_of(imported[1], table, columns))


def test_device_time_is_that_of_the_file(imported, run):
    """Fails if a step has another split of device time in the run than in the trace alone."""
    trace = load_trace(run)
    for step in (9, 10, 11):
        found, wanted = device_breakdown(trace, step), device_breakdown(imported[1], step)
        assert found.drop(columns="unlinked_events").equals(wanted.drop(columns="unlinked_events"))


def test_communication_kernels_have_the_axis_of_what_was_issued(run):
    """Fails if kernels of a real backend are not known from the operations before their launches."""
    kernels = kernel_report(load_trace(run)).kernels
    moving = kernels[kernels["category"] == "communication"]
    assert moving["count"].sum() > 0
    assert set(moving["axis"]) == {"dp"}
