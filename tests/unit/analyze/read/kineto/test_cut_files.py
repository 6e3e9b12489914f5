"""What lies behind the cut of a file is not seen; it is not time in which nothing happened."""

import json

import pytest
from tests.unit.analyze.read.kineto.test_importer import (
    event,
    kernel,
    launch,
    mentions,
    step_note,
    write_rank,
)

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.read import import_trace
from meshscope.probe.schema.errors import TraceFormatError


def steps_of(first, count):
    """Return events of steps of 100 us by time: a call at 10, a kernel from 20 to 80."""
    for k in range(first, first + count):
        begin = 1000 + 100 * k
        yield step_note(k, begin, 100)
        yield launch(begin + 10, k + 1)
        yield kernel("gemm", begin + 20, 60, correlation=k + 1)


def write_cut(path, events, rank, world_size):
    """Write a file of which the last event and all behind it are missing."""
    text = write_rank(path, [*events, event("cpu_op", "torn", 9, 9)], rank=rank, world_size=world_size).read_text()  # fmt: skip
    # Written with the header behind the events, as the profiler does: it is lost with the cut.
    whole = json.loads(text)
    head = {name: value for name, value in whole.items() if name != "traceEvents"}
    text = json.dumps({**head, "traceEvents": whole["traceEvents"]})
    path.write_text(text[: text.index('"torn"')])


def used(trace):
    """Return the ranks and the steps that are analysed."""
    windows = step_windows(trace)
    return windows.ranks.tolist(), windows.steps.tolist()


def test_a_rank_cut_before_its_first_step_leaves_the_steps_to_the_others(tmp_path):
    """Fails when one damaged file of many takes the whole diagnosis with it."""
    for rank in (0, 1):
        write_rank(tmp_path / f"rank{rank}.json", steps_of(5, 3), rank=rank, world_size=3)
    events = [event("cpu_op", "aten::mm", 1500, 5), kernel("gemm", 1520, 9)]
    write_cut(tmp_path / "rank2.json", events, 2, 3)
    trace = import_trace(tmp_path)
    assert used(trace) == ([0, 1], [5, 6, 7])
    assert mentions(trace, "Rank 2", "left out of the steps")


def test_a_rank_with_a_part_of_the_steps_leaves_them_all_to_the_others(tmp_path):
    """Fails when the others lose the steps that the cut file does not hold: 3 of 3 are theirs."""
    for rank in (0, 1):
        write_rank(tmp_path / f"rank{rank}.json", steps_of(5, 3), rank=rank, world_size=3)
    write_cut(tmp_path / "rank2.json", steps_of(5, 2), 2, 3)
    trace = import_trace(tmp_path)
    assert used(trace) == ([0, 1], [5, 6, 7])
    assert mentions(trace, "1 of the 2 steps it began are certainly whole")


def test_lost_device_work_is_no_idle_time(tmp_path):
    """Fails when a rank whose kernels are behind the cut counts as idle: all others compute 60 %."""
    for rank in (0, 1):
        write_rank(tmp_path / f"rank{rank}.json", steps_of(5, 3), rank=rank, world_size=3)
    host_only = [one for one in steps_of(5, 3) if one["cat"] != "kernel"]
    write_cut(tmp_path / "rank2.json", host_only, 2, 3)
    found = diagnose(load_trace(tmp_path))
    assert {bar.name: bar.frac for bar in found.waterfall}["compute"] == pytest.approx(0.6)


def test_a_step_with_a_launch_whose_kernel_is_lost_is_not_whole(tmp_path):
    """Fails when the steps of the only file are taken as whole behind its cut."""
    lost = [one for one in steps_of(5, 3) if one["cat"] != "kernel" or one["ts"] < 1700]
    write_cut(tmp_path / "rank0.json", lost, 0, 1)
    trace = import_trace(tmp_path)
    assert used(trace) == ([0], [5, 6])
    assert mentions(trace, "steps that the cut may have hit", "7")


def test_a_cut_rank_with_all_steps_of_the_others_stays(tmp_path):
    """Fails when a file that is cut behind what is analysed costs the rank."""
    write_rank(tmp_path / "rank0.json", steps_of(5, 2), rank=0, world_size=2)
    write_cut(tmp_path / "rank1.json", steps_of(5, 3), 1, 2)
    assert used(import_trace(tmp_path)) == ([0, 1], [5, 6])


def test_ranks_with_other_steps_are_separated(tmp_path):
    """Fails when the error asks for a whole step, while all that were recorded are whole."""
    write_rank(tmp_path / "rank0.json", steps_of(5, 2), rank=0, world_size=2)
    write_rank(tmp_path / "rank1.json", steps_of(7, 2), rank=1, world_size=2)
    with pytest.raises(TraceFormatError, match=r"rank 0: steps 5-6; rank 1: steps 7-8"):
        diagnose(load_trace(tmp_path))


@pytest.mark.traces
def test_a_real_trace_of_which_one_file_is_cut_in_half(traces_dir, tmp_path):
    """Fails when the device work that half a file lost lowers the computing of the job."""
    whole = sorted((traces_dir / "amd_hpctraining/split").glob("*.gz"))
    for file in whole:
        content = file.read_bytes()
        is_cut = file == whole[1]
        (tmp_path / file.name).write_bytes(content[: len(content) // 2] if is_cut else content)
    trace = load_trace(tmp_path)
    assert used(trace) == ([0, 2, 3], [9, 10, 11])
