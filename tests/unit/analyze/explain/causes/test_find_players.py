"""Every cause against two simulated jobs that differ in it alone."""

import numpy as np
import pytest
from tests.synthetic import MS, Job, capture, capture_of, programs

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.tables.results import Cause
from meshscope.probe.schema.layout import ParallelLayout

CUBE = ParallelLayout(tp=2, pp=2, dp=2)
EVEN = {"forward": 10 * MS, "backward": 20 * MS}


def even(kind, rank, step, microbatch):
    """Return the work of a healthy job."""
    return EVEN[kind]


def causes_of(trace) -> tuple[dict[str, Cause], float]:
    """Return the causes of a capture by kind, and its step time."""
    result = diagnose(trace)
    return {cause.kind: cause for cause in result.causes}, result.step_time_ns


def stalled(job, kind, stalls):
    """Return a healthy job in which ranks stand still at the head of steps: {rank: ns}."""
    operations = programs(job, even)
    for rank, ns in stalls.items():
        program = []
        for op in operations[rank]:
            if not program or program[-1][0] == "end":
                step = program[-1][1] + 1 if program else 0
                if step < job.steps:
                    program.append(("work", ns, step, kind, -1, -1))
            program.append(op)
        operations[rank] = program
    return capture_of(job, operations)


@pytest.mark.parametrize(
    ("span", "cause"),
    [("gc", "gc_pause"), ("data_load", "data_stall"), ("checkpoint", "checkpoint_stall")],
)
@pytest.mark.parametrize("place", [(5,), tuple(range(8))], ids=["one rank", "all ranks"])
def test_a_stall_of_the_host_is_a_cause_of_its_own(span, cause, place):
    """A pause would be billed to a slow device, or at a price that nobody gets back."""
    job = Job(layout=CUBE, steps=5)
    found, step_ns = causes_of(stalled(job, span, dict.fromkeys(place, 15 * MS)))
    clean = diagnose(capture(job, even)).step_time_ns
    assert "straggler_rank" not in found
    assert found[cause].removal_gain_frac * step_ns == pytest.approx(step_ns - clean, rel=1e-6)
    assert found[cause].where == ({"rank": 5} if place == (5,) else {})


def heavy(extra):
    """Return work in which stages take longer by a factor."""

    def work(kind, rank, step, microbatch):
        return int(EVEN[kind] * extra.get(ParallelLayout(pp=4, dp=2).coordinates(rank)["pp"], 1.0))

    return work


def stages_of(extra):
    """Return the stage causes of a PP4 job by stage, with the step time."""
    result = diagnose(capture(Job(layout=ParallelLayout(pp=4, dp=2), steps=4), heavy(extra)))
    stages = {c.where["stage"]: c for c in result.causes if c.kind == "stage_imbalance"}
    return stages, result.step_time_ns


def test_embedding_and_head_are_causes_of_their_own():
    """Two heavy ends of a pipeline would be one number that names one of them."""
    both, step_ns = stages_of({0: 1.3, 3: 1.6})
    assert set(both) == {0, 3}
    # Where the last stage is the bottleneck, the first one may shift a transfer, and no more.
    assert both[3].share_frac > 0.1 > 1e-3 > abs(both[0].share_frac)
    mean = (1.3 + 1.0 + 1.0 + 1.6) / 4
    equal = diagnose(
        capture(
            Job(layout=ParallelLayout(pp=4, dp=2), steps=4), heavy(dict.fromkeys(range(4), mean))
        )
    ).step_time_ns
    lost = (both[0].share_frac + both[3].share_frac) * step_ns
    assert lost == pytest.approx(step_ns - equal, rel=1e-6)


def test_a_heavy_inner_stage_is_named():
    """The excess of an inner stage would be looked for at the ends."""
    stages, _ = stages_of({2: 1.4})
    assert set(stages) == {2}


def sequences(seed, cv, layout):
    """Return work that depends on the data of a replica, by microbatch, and a clean twin."""
    lengths = np.clip(np.random.default_rng(seed).normal(1.0, cv, (layout.dp, 12, 4)), 0.3, None)

    def work(kind, rank, step, microbatch):
        replica = layout.coordinates(rank)["dp"]
        return int(EVEN[kind] * lengths[replica, step, microbatch])

    return work


@pytest.mark.parametrize(
    "layout",
    [CUBE, ParallelLayout(pp=4, dp=2), ParallelLayout(dp=4)],
    ids=["2x2x2", "pp4 dp2", "dp4"],
)
def test_unequal_sequences_are_distinguished_from_jitter(layout):
    """Data that can be packed better would be taken for noise, or for slow ranks."""
    job = Job(layout=layout, steps=12)
    found, _ = causes_of(capture(job, sequences(1, 0.3, layout)))
    jitter = found["jitter"].share_frac
    assert found["sequence_imbalance"].share_frac > 0.05
    assert abs(jitter) < 0.25 * found["sequence_imbalance"].share_frac


def test_a_pass_of_several_spans_is_one():
    """The loss, which the last stage records as a forward of its own, would hide uneven data."""
    layout = ParallelLayout(pp=2, dp=2)
    job = Job(layout=layout, steps=12)
    operations = programs(job, sequences(1, 0.3, layout))
    for rank, program in enumerate(operations):
        if layout.coordinates(rank)["pp"] == 1:
            operations[rank] = [part for op in program for part in _with_loss(op)]
    found, _ = causes_of(capture_of(job, operations))
    assert found["sequence_imbalance"].share_frac > 0.05


def _with_loss(op):
    if op[0] != "work" or op[3] != "forward":
        return [op]
    return [op, ("work", 200_000, *op[2:])]


@pytest.mark.parametrize("seed", range(4))
def test_jitter_is_not_taken_for_data(seed):
    """People would repack their data because of noise."""
    layout = (CUBE, ParallelLayout(pp=4, dp=2), ParallelLayout(dp=4), ParallelLayout(tp=4))[seed]

    def work(kind, rank, step, microbatch):
        key = [seed, kind == "forward", rank, step, microbatch]
        return int(EVEN[kind] * max(0.3, 1 + 0.1 * np.random.default_rng(key).standard_normal()))

    found, _ = causes_of(capture(Job(layout=layout, steps=8), work))
    assert "sequence_imbalance" not in found
    assert found["jitter"].share_frac > 0.01


@pytest.mark.parametrize(("group", "members"), [("dp-1", (1, 5)), ("dp-2", (2, 6))])
def test_a_slow_group_is_named_and_costed(group, members):
    """The wrong cable would be replaced."""
    layout = ParallelLayout(tp=2, pp=2, dp=2)
    job = Job(layout=layout, steps=5)
    name = next(n for n in (f"dp-{g[0]}" for g in layout.groups("dp")) if n != "dp-0")
    operations = [[_slower(op, name, 12 * MS) for op in program] for program in programs(job, even)]
    found, step_ns = causes_of(capture_of(job, operations))
    clean = diagnose(capture(job, even)).step_time_ns
    assert found["slow_link"].where == {"axis": "dp", "group_id": name}
    gain = found["slow_link"].removal_gain_frac * step_ns
    assert gain == pytest.approx(step_ns - clean, rel=1e-6)


def _slower(op, group, extra):
    if op[0] == "collective" and op[2][0] == group:
        return (*op[:-1], op[-1] + extra)
    return op


def test_a_slow_host_is_one_cause():
    """Four slow ranks would be four suspects, each of which returns nothing alone."""
    layout = ParallelLayout(pp=2, dp=4)
    slow_ranks = [0, 4]
    trace = capture(
        Job(layout=layout, steps=5),
        lambda kind, rank, step, mb: int(EVEN[kind] * (1.3 if rank in slow_ranks else 1.0)),
    )
    hosts = {rank: f"node{rank % 4}" for rank in range(8)}
    found, step_ns = causes_of(_with_clocks(trace, hosts))
    clean = diagnose(capture(Job(layout=layout, steps=5), even)).step_time_ns
    cause = found["straggler_rank"]
    assert cause.where == {"host": "node0", "ranks": slow_ranks}
    assert cause.removal_gain_frac * step_ns == pytest.approx(step_ns - clean, rel=1e-6)
    findings = [f for f in diagnose(_with_clocks(trace, hosts)).findings if "host" in f.where]
    assert str(findings[0].claim).startswith("All ranks of host node0 (ranks 0 and 4) are up to")


def _with_clocks(trace, clocks):
    from dataclasses import replace

    return replace(trace, clocks=clocks, _frames={})
