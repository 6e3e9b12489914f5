"""The account of every step: windows that cover all steps once, and means that add up as those of a window do."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze import diagnose
from meshscope.analyze.every_step.joined import account_of_every_step, joined, windows_of
from meshscope.analyze.every_step.window import FOLDER, Part, WindowAccount
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.scale.blocks import Blocks, blocks_of
from meshscope.analyze.scale.executors import InThisProcess, LocalProcesses
from meshscope.analyze.scale.store import write_summaries
from meshscope.analyze.synthetic import SyntheticJob, parse_fault, truth_of
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.analyze.tables.part import StepRange
from meshscope.probe.schema.layout import ParallelLayout

STEPS, RANKS, WINDOWS = 16, 8, 4


def nobody(_count):
    """Hear nothing."""


@pytest.fixture(scope="module")
def job():
    """Return a job in which one rank is slow in the second half."""
    fault = parse_fault(f"slow_rank:rank=5,factor=1.3,first_step={STEPS // 2}")
    layout = ParallelLayout(tp=2, pp=2, dp=RANKS // 4)
    return SyntheticJob(
        layout=layout, microbatches=4, steps=STEPS, jitter_cv=0.005, faults=(fault,)
    )


@pytest.fixture(scope="module")
def run(job, tmp_path_factory):
    """Return its run directory."""
    return write_run(job, record(make_simulation(job)), None, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    """Return its summaries; a test leaves the accounts beside them complete."""
    return write_summaries(run, InThisProcess(), nobody, tmp_path_factory.mktemp("summaries"))


@pytest.fixture(scope="module")
def here(made):
    """Return the account of all steps as one process makes it."""
    return whole(made)


def accounts(made):
    """Return the bytes of every kept account."""
    return {file.name: file.read_bytes() for file in (made.folder / FOLDER).iterdir()}


def whole(made, executor=None, on_done=nobody):
    """Return the account of all steps, in four windows."""
    windows = windows_of(blocks_of(made), 1 << 40, workers=WINDOWS)
    return account_of_every_step(made, windows, executor or InThisProcess(), on_done)


@given(
    rows=st.lists(st.integers(1, 1000), min_size=1, max_size=40),
    most=st.integers(1, 3000),
    workers=st.integers(1, 9),
)
def test_windows_hold_each_step_once_and_have_room(rows, most, workers):
    """Fails when a step is accounted for twice or not at all, or a window takes the memory of several."""
    steps = np.arange(len(rows)) * 3 + 7
    table = pa.table({"step": pa.array(steps), "records": pa.array(rows, pa.int64())})
    found = windows_of(Blocks(table, table), most, workers)
    held = [step for step in steps for own, _ in found if own.first <= step <= own.last]
    assert held == steps.tolist()
    assert sum(size for _, size in found) == sum(rows)
    # One step is the least that a window has, and the last one of it may lie half outside.
    assert all(size <= most + max(rows) for _, size in found)


def test_only_the_steps_that_were_asked_for_are_in_windows():
    """Fails when a question about some steps is answered with all."""
    table = pa.table({"step": range(10), "records": [5] * 10})
    found = windows_of(Blocks(table, table), 10, within=StepRange(3, 6))
    assert found == ((StepRange(3, 4), 10), (StepRange(5, 6), 10))
    assert windows_of(Blocks(table, table), 10, within=StepRange(20, 30)) == ()


def test_classes_of_all_windows_are_those_of_the_whole_run(run, here):
    """Fails when joining the windows loses time of a class, or gives it to another."""
    found, at_once = here, diagnose(load_trace(run))
    assert found.steps == at_once.run["steps"] == STEPS
    assert found.step_ns == pytest.approx(at_once.step_time_ns, rel=1e-9)
    expected = {bar.name: bar.dur_ns for bar in at_once.waterfall}
    for one in found.classes:
        assert one.cost_ns == pytest.approx(expected[one.kind], rel=1e-9), one.kind
    per_window = [sum(part.cost_ns for part in one.classes) for one in found.windows]
    total = sum(one.cost_ns for one in found.classes)
    assert total == pytest.approx(np.average(per_window, weights=[4] * WINDOWS), rel=1e-12)


def test_what_is_slow_in_half_of_the_steps_costs_half_over_all(job, here):
    """Fails when the price of a window is taken for that of the run, or a place in time is lost."""
    (slow,) = (one for one in here.causes if one.kind == "straggler_rank")
    (fault,) = truth_of(job).faults
    assert slow.where == {"rank": 5}
    assert slow.steps == ((STEPS // 2, STEPS - 1),)
    assert slow.gain_ns == pytest.approx(fault.removal_gain_ns, rel=0.03)
    first = here.findings[0]
    assert (first.kind, first.steps) == ("straggler_rank", slow.steps)
    assert first.dearest.first >= STEPS // 2


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_gives_the_same_account(made, here, workers):
    """Fails when the answer depends on where it was computed."""
    files = accounts(made)
    for file in (made.folder / FOLDER).iterdir():
        file.unlink()
    assert whole(made, LocalProcesses(workers)) == here
    assert accounts(made) == files


def test_a_killed_worker_costs_time_only(made, here):
    """Fails when a lost worker ends the account of a whole run, or leaves steps out."""
    files, killed = accounts(made), []
    for file in (made.folder / FOLDER).iterdir():
        file.unlink()

    def kill_one(_count):
        if not killed and (alive := multiprocessing.active_children()):
            killed.append(alive[0].pid)
            os.kill(alive[0].pid, signal.SIGKILL)

    assert whole(made, LocalProcesses(2), kill_one) == here
    assert killed
    assert accounts(made) == files


def test_a_second_call_takes_what_is_there(made, here, monkeypatch):
    """Fails when an interrupted account of hours begins anew."""
    gone = sorted((made.folder / FOLDER).iterdir())[1]
    gone.unlink()
    asked = []
    monkeypatch.setattr(
        "meshscope.analyze.every_step.window.diagnose",
        lambda trace: asked.append(trace) or diagnose(trace),
    )
    assert whole(made) == here
    assert len(asked) == 1


def test_accounts_that_cannot_be_read_are_made_anew(made, here):
    """Fails when a torn file ends the command, or is believed."""
    files = sorted((made.folder / FOLDER).iterdir())
    for file, damage in zip(files, (b"", b"{", b'{"first": "a"}'), strict=False):
        file.write_bytes(damage)
    assert whole(made) == here


def test_a_question_about_some_steps_keeps_the_answer_about_all(made, here):
    """Fails when who asks about a few steps of a run loses the account of hours."""
    files = accounts(made)
    some = windows_of(blocks_of(made), 1 << 40, within=StepRange(1, 2))
    account_of_every_step(made, some, InThisProcess(), nobody)
    assert accounts(made).items() > files.items()
    for name in accounts(made).keys() - files.keys():
        (made.folder / FOLDER / name).unlink()


def test_accounts_of_other_records_go(made, here):
    """Fails when the account of a run that has gone on holds steps as they were."""
    stale = made.folder / FOLDER / "0-99.0123456789abcdef.json"
    stale.write_text(json.dumps({}))
    whole(made)
    assert not stale.exists()
    assert len(accounts(made)) == WINDOWS


def test_a_window_that_cannot_be_analysed_says_so_and_the_others_count(tmp_path):
    """Fails when one bad window ends the account, or its steps count as if they took no time."""
    good = WindowAccount(
        first=0,
        last=9,
        steps=10,
        step_ns=4.0,
        classes=(Part(kind="forward", cost_ns=4.0),),
        mfu=0.5,
    )
    bad = WindowAccount(first=10, last=19, steps=0, failed="a file is damaged")
    found = joined(tmp_path, 2, [good, bad])
    assert (found.steps, found.step_ns, found.mfu) == (10, 4.0, 0.5)
    assert [one.failed for one in found.failed] == ["a file is damaged"]
    assert [(one.kind, one.cost_ns) for one in found.classes] == [("forward", 4.0)]


COSTS = st.one_of(st.none(), st.floats(0, 1e9))


@given(
    costs=st.lists(COSTS, min_size=1, max_size=6),
    steps=st.lists(st.integers(1, 50), min_size=6, max_size=6),
)
def test_a_mean_weighs_windows_by_their_steps(costs, steps):
    """Fails when a cause of a short window counts as much as one of a long window."""
    windows = [
        WindowAccount(
            first=100 * at,
            last=100 * at + size - 1,
            steps=size,
            step_ns=1e9,
            causes=(Part(kind="jitter", cost_ns=cost, key="[]"),),
        )
        for at, (cost, size) in enumerate(zip(costs, steps, strict=False))
    ]
    (found,) = joined(Path("run"), 1, windows).causes
    total = sum(one.steps for one in windows)
    if all(cost is None for cost in costs):
        assert found.cost_ns is None
    else:
        paid = sum((cost or 0) * one.steps for cost, one in zip(costs, windows, strict=True))
        assert found.cost_ns == pytest.approx(paid / total)
    assert found.steps == ((windows[0].first, windows[-1].last),)
