"""Held-out jobs: what they are judged by is exact, and none of it is meshscope's own reckoning."""

import ast
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tests.truth.foreign.job import HeavyStage, Job, SlowRank, UnequalData, levelled
from tests.truth.foreign.place import PROJECT, record
from tests.truth.foreign.program import Shape, program
from tests.truth.foreign.published import published
from tests.truth.foreign.record import Recording, write
from tests.truth.foreign.replayed import replayed


def equal_job(*faults, joins=(), pp=2, dp=2, steps=2):
    """Return a job of two microbatches: forward 1 s, backward 2 s, optimizer 1 s, all else 0."""
    shape = Shape(pp=pp, dp=dp, microbatches=2, steps=steps, joins=joins)
    parts = [np.zeros((len(program(shape, stage)), dp, steps)) for stage in range(pp)]
    wires = [part.copy() for part in parts]
    for wire in wires:
        wire[-1] = 1
    return Job(
        shape,
        np.array([[1.0] * pp, [2.0] * pp]),
        tuple(np.ones_like(part) for part in parts),
        tuple(wires),
        tuple(parts),
        faults,
    )


def test_a_step_lasts_as_long_as_the_schedule_says():
    """Every truth would be off: (microbatches + stages - 1) passes both ways, and the optimizer."""
    assert equal_job().step_s() == pytest.approx((2 + 2 - 1) * 3 + 1)
    assert equal_job(pp=1).step_s() == pytest.approx(2 * 3 + 1)


def test_gains_are_those_of_a_pencil():
    """A slow rank on a stage lengthens its two microbatches and nothing else of one step of two."""
    slow = SlowRank(0, 1, np.array([2.0, 1.0]))
    job = equal_job(slow)
    # The other stage waits: 1 + 2 (2 + 4) + 2, and the optimizer.
    assert job.timeline().step_s() == pytest.approx([16, 10])
    assert job.gain(slow) == pytest.approx(3 / 13)
    assert job.shares()[slow] == pytest.approx(3 / 13)


def test_shares_of_two_faults_sum_to_what_both_cost():
    """The truth of shares would not add up."""
    work = np.ones((2, 2, 2))
    work[0], work[1] = 0.5, 1.5
    job = equal_job(SlowRank(1, 0, np.full(2, 1.5)), UnequalData(work))
    together = (job.step_s() - job.step_s(job.faults)) / job.step_s()
    assert sum(job.shares().values()) == pytest.approx(together)
    assert min(map(job.gain, job.faults)) > 0


def test_a_hidden_join_holds_the_tail():
    """Jobs with and without joins would be the same, and nothing be held out."""
    slow = SlowRank(0, 1, np.full(2, 2.0))
    for joins, held in (((), []), (("loss",), [1]), (("world",), [0, 1])):
        job = equal_job(slow, joins=joins)
        timeline = job.timeline()
        begins = [
            timeline.starts[stage][
                [item.name for item in items].index("layernorm-grads-all-reduce")
            ]
            for stage, items in enumerate(job.programs())
        ]
        for stage, begin in enumerate(begins):
            assert (np.ptp(begin, axis=0) == 0).all() == (stage in held)


def test_a_levelled_stage_gives_its_excess_to_the_light_ones():
    """What repairing a stage returns would be that of removing its work."""
    centres = np.array([[1.0, 2.0, 6.0], [3.0, 3.0, 3.0]])
    assert levelled(centres, 2).tolist() == [[3, 3, 3], [3, 3, 3]]
    assert levelled(centres, 0).tolist() == centres.tolist()
    assert equal_job().gain(HeavyStage(1)) == 0
    heavy = replace(equal_job(), centres=centres[:, 1:])
    assert heavy.gain(HeavyStage(1)) == pytest.approx(heavy.shares().popitem()[1])


@pytest.mark.traces
def test_the_published_job_happens_as_recorded():
    """Its variants would be those of another job."""
    job = published(record())
    rows = pd.read_parquet(record())
    timeline = job.timeline()
    ends = rows["start_ts"].astype(float) + rows["duration"].astype(float)
    steps = ends.groupby(rows["step"]).max() - rows.groupby("step")["start_ts"].min()
    assert timeline.step_s() == pytest.approx(steps.to_numpy(), abs=1e-6)
    slow = SlowRank(0, 1, np.full(job.shape.steps, 2.0))
    assert replace(job, faults=(slow,)).gain(slow) == pytest.approx(0.0822946, abs=1e-6)


def test_files_hold_the_simulated_times(tmp_path):
    """The file would be another job than the one that was priced."""
    job = equal_job(SlowRank(0, 1, np.full(2, 2.0)))
    recording = Recording(stamps="float64", tp=2, ep=2, without=("gc",))
    write(job, recording, tmp_path / "one", np.random.default_rng(1))
    rows = pd.read_parquet(tmp_path / "one" / "trace-one.parquet")
    assert sorted(rows["rank"].unique()) == [0, 4, 8, 12]
    assert sorted(rows["dp_rank"].unique()) == [0, 2]
    assert "gc" not in set(rows["optype"])
    slow = rows[(rows["rank"] == 8) & (rows["optype"] == "backward-compute")]
    assert slow["duration"].tolist() == pytest.approx([4] * 4)
    ends = rows["start_ts"] + rows["duration"]
    assert ends.groupby(rows["step"]).max().tolist() == pytest.approx([16, 16])
    assert "world_size: 16" in (tmp_path / "one" / "meta-one.yaml").read_text()


def test_a_seed_gives_the_same_jobs_again(tmp_path):
    """A miss could not be looked into."""
    first = list(replayed(tmp_path / "a", 3, 4, None))
    again = list(replayed(tmp_path / "b", 3, 4, None))
    assert json.dumps(first) == json.dumps(again)
    assert first != list(replayed(tmp_path / "c", 4, 4, None))


def test_the_jobs_owe_nothing_to_the_analysis():
    """The generator would share the mistakes that it is there to find."""
    folder = PROJECT / "tests" / "truth" / "foreign"
    for name in ("program", "simulate", "job", "published", "record", "draw", "replayed", "place"):
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        names = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
        assert not [one for one in names if one and one.startswith(("meshscope", "tests.truth.m"))]
