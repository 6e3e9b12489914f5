"""Slow ranks of a running job."""

import numpy as np
import pytest
from tests.slow_ranks import Fault, Nuisance, SlowRankJob

from meshscope.analyze.explain.slow_ranks import Evidence, OnlineDetector, Persistence
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout

GRID = ParallelLayout(pp=4, dp=4)


def follow(*faults, layout=GRID, steps=45, seed=60, **nuisance):
    """Return the detector at the end of a job, and its alarms."""
    job = SlowRankJob(
        seed=seed, layout=layout, steps=steps, faults=faults, nuisance=Nuisance(**nuisance)
    )
    detector = OnlineDetector(tuple(range(layout.world_size)), layout, 2)
    alarms = []
    for step, durations in enumerate(job.durations()):
        alarms += detector.update(step, durations)
    return detector, alarms


def test_an_alarm_comes_within_five_steps():
    """A trigger of a deep trace would come when the fault is over."""
    _, (alarm,) = follow(Fault(rank=6, factor=1.05, start=30), work_cv=0.35)
    assert alarm.rank == 6
    assert 32 <= alarm.found_at_step <= 34
    assert abs(alarm.first_bad_step - 30) <= 1
    assert alarm.slowdown == pytest.approx(0.05, abs=0.02)


def test_a_rank_that_is_slow_from_the_start_is_found_against_its_peers():
    """A bad node in a new job would become its own normal."""
    _, (alarm,) = follow(Fault(rank=6, factor=1.1), steps=10)
    assert (alarm.rank, alarm.evidence) == (6, Evidence.PEERS)
    assert alarm.found_at_step <= 5


def test_first_steps_are_judged_together():
    """A bad node in a job of two replicas would be found long after its first five steps."""
    layout = ParallelLayout(pp=4, dp=2)
    found = [
        follow(Fault(rank=5, factor=1.07), layout=layout, steps=5, seed=s)[1] for s in range(4)
    ]
    assert [[alarm.rank for alarm in alarms] for alarms in found] == [[5]] * 4


def test_the_other_stage_of_a_slow_rank_is_left_alone():
    """Its sequences, which nobody tells any more, would make a suspect of its healthy replica."""
    layout = ParallelLayout(pp=2, dp=2)
    for seed in range(3):
        fault = Fault(rank=seed % 4, factor=1.1, start=25)
        _, (alarm,) = follow(fault, layout=layout, steps=50, seed=seed, work_cv=0.35)
        assert alarm.rank == fault.rank


def test_steps_of_unlike_length_are_followed_from_the_first_on():
    """A job that grows its batch would be lost with an error in its first steps."""
    durations = SlowRankJob(
        seed=3, layout=GRID, steps=30, faults=(Fault(rank=6, factor=1.1, start=25),)
    ).durations()
    detector = OnlineDetector(tuple(range(16)), GRID, 2)
    alarms = []
    for step, values in enumerate(durations):
        alarms += detector.update(step, values[..., : 4 + step % 5])
    assert [alarm.rank for alarm in alarms] == [6]


def test_recovery_is_noticed_and_a_second_fault_is_found():
    """One transient fault would blind the detector for the rest of the job."""
    detector, alarms = follow(
        Fault(rank=6, factor=1.1, start=25, stop=35), Fault(rank=2, factor=1.1, start=45), steps=60
    )
    assert [alarm.rank for alarm in alarms] == [6, 2]
    verdicts = detector.verdicts()
    assert verdicts[6].persistence is Persistence.TRANSIENT
    assert abs(verdicts[6].last_bad_step - 34) <= 1
    assert verdicts[2].persistence is Persistence.PERSISTENT
    assert verdicts[2].last_bad_step == 59
    assert verdicts[0].persistence is Persistence.NONE


def test_without_replicas_it_waits_for_a_past():
    """A lone pipeline would be judged before anything is known of it."""
    layout = ParallelLayout(pp=4)
    early, _ = follow(layout=layout, steps=10)
    assert {verdict.persistence for verdict in early.verdicts()} == {Persistence.UNKNOWN}
    _, (alarm,) = follow(Fault(rank=1, factor=1.06, start=30), layout=layout)
    assert (alarm.rank, alarm.evidence) == (1, Evidence.HISTORY)


def test_known_work_is_used():
    """A running job without pipeline would take long sequences for slow ranks."""
    layout = ParallelLayout(dp=4)
    draw = np.random.default_rng(7)
    detector = OnlineDetector(tuple(range(4)), layout, 1)
    alarms = []
    for step in range(12):
        tokens = draw.uniform(1000, 5000, (4, 1, 8))
        time = tokens * (1 + 0.01 * draw.standard_normal(tokens.shape))
        time[3] *= 1.08
        alarms += detector.update(step, time, tokens[..., None])
    assert [alarm.rank for alarm in alarms] == [3]


def test_its_memory_does_not_grow():
    """A job of months would fill the memory of the node."""

    def size(detector):
        judge, noise = detector._judge, detector._noise
        parts = [detector, noise, detector._alarms]
        values = [value for part in parts for value in vars(part).values()]
        for kept in (judge.own, judge.peers):
            values += [kept.recent, kept.past, kept.count]
        return sum(np.asarray(v).nbytes for v in values if isinstance(v, np.ndarray | list))

    short, _ = follow(steps=65, layout=ParallelLayout(dp=2))
    long, _ = follow(steps=90, layout=ParallelLayout(dp=2))
    assert size(long) == size(short)


def test_durations_of_another_shape_are_refused():
    """Ranks would be mixed up without a word."""
    detector = OnlineDetector((0, 1), ParallelLayout(dp=2), 2)
    with pytest.raises(ConfigError):
        detector.update(0, np.ones((3, 2, 4)))


def test_the_state_machine_needs_no_tables():
    """A node agent would have to carry pandas and arrow for a few sums."""
    import ast
    from pathlib import Path

    from meshscope.analyze.explain import slow_ranks

    seen, todo = set(), [Path(slow_ranks.__file__).with_name("online.py")]
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"pandas", "pyarrow"}, path
            if isinstance(node, ast.ImportFrom) and node.level:
                module = node.module.replace(".", "/")
                todo.append(path.parents[node.level - 1] / f"{module}.py")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("at", [0, 1, 12, 21, 60])
@pytest.mark.parametrize("factor", [2, 10])
def test_one_slow_step_raises_no_alarm_however_long_the_job_runs(at, factor):
    """Fails when a pause is blamed once it leaves the last forty steps."""
    fault = Fault(rank=2, factor=factor, start=at, stop=at + 1)
    _, alarms = follow(fault, layout=ParallelLayout(dp=8), steps=130)
    assert not alarms
