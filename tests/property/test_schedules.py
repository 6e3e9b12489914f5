"""Schedules: what their orders, their replay and their bubbles must keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.formulas.schedules import (
    PASS_KINDS,
    SCHEDULES,
    SPLIT_BACKWARD,
    PassCosts,
    fill_and_drain_frac,
    make_plan,
    replayed_bubble_frac,
    schedule_graph,
)
from meshscope.probe.schema.terms import ScheduleKind

DURATIONS = st.integers(1, 10**9)


@st.composite
def plans(draw):
    """Return a plan of any schedule, size and number of chunks."""
    schedule = draw(st.sampled_from(list(SCHEDULES)))
    chunks = SCHEDULES[schedule].chunks or draw(st.integers(1, 4))
    ranks = draw(st.integers(1, 6))
    least = max(1, SCHEDULES[schedule].legs * ranks)
    return make_plan(schedule, ranks, draw(st.integers(least, least + 16)), chunks)


@st.composite
def jobs(draw):
    """Return a plan with durations of every pass, its messages and its tails, in two lanes."""
    plan = draw(plans())
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    longest = draw(DURATIONS)
    return (
        plan,
        random.integers(0, longest, (len(plan), 2)),
        random.integers(0, longest, (len(plan), 2)),
        random.integers(0, longest, (plan.ranks, 2)),
    )


def equal_stages(plan, forward, backward_input, backward_weight):
    """Return the same costs on every stage."""
    stages = plan.ranks * plan.chunks
    return PassCosts(
        forward_ns=np.full(stages, forward),
        backward_input_ns=np.full(stages, backward_input),
        backward_weight_ns=np.full(stages, backward_weight),
    )


def idle_ns(plan, costs):
    """Return how long a rank computes nothing in a step."""
    pass_ns = costs.of_passes(plan)
    whole = schedule_graph(plan).times(pass_ns).makespan_ns[0]
    return whole - pass_ns.sum() / plan.ranks


@given(plans())
def test_every_pass_is_done_once_where_its_stage_is(plan):
    """A microbatch would be lost, done twice, or trained backward before forward."""
    rows = zip(plan.microbatch.tolist(), plan.stage.tolist(), plan.kind.tolist(), strict=True)
    stages = plan.ranks * plan.chunks
    done = {(m, s): [] for m in range(plan.microbatches) for s in range(stages)}
    for m, s, kind in rows:
        done[m, s].append(str(PASS_KINDS[kind]))
    whole = ["forward", "backward"]
    halves = ["forward", "backward_input", "backward_weight"]
    if plan.schedule not in SPLIT_BACKWARD:
        assert all(one == whole for one in done.values())
    if plan.schedule in (ScheduleKind.ZB_H1, ScheduleKind.ZB_V):
        assert all(one == halves for one in done.values())
    assert all(one in (whole, halves) for one in done.values())
    assert all(len(set(plan.rank[plan.stage == stage].tolist())) == 1 for stage in range(stages))


@given(jobs(), st.integers(0, 10**6), DURATIONS)
def test_longer_durations_make_nothing_earlier(job, item, extra):
    """A fault could seem to speed a step up."""
    plan, *durations = job
    graph = schedule_graph(plan)
    before = graph.times(*durations)
    for changed in range(3):
        longer = [part.copy() for part in durations]
        longer[changed][item % len(longer[changed])] += extra
        after = graph.times(*longer)
        assert (after.end_ns >= before.end_ns).all()
        assert (after.finish_ns >= before.finish_ns).all()


@given(jobs())
def test_the_step_is_as_long_as_its_critical_path(job):
    """What the replay says would not follow from the durations."""
    plan, pass_ns, p2p_ns, tail_ns = job
    times = schedule_graph(plan).times(pass_ns, p2p_ns, tail_ns)
    for lane in range(2):
        start, end = times.start_ns[:, lane], times.end_ns[:, lane]
        rank = int(times.finish_ns[:, lane].argmax())
        length = int(tail_ns[rank, lane])
        row = int(np.flatnonzero(plan.is_last)[rank])
        while row >= 0:
            wire = int(p2p_ns[row, lane]) if plan.crosses[row] else 0
            length += int(pass_ns[row, lane])
            ready = start[row] - wire
            own = -1 if plan.is_first[row] else row - 1
            sources = [at for at in (own, int(plan.needs[row])) if at >= 0 and end[at] == ready]
            if start[row] > 0:
                length += wire
            assert sources or ready == 0
            row = sources[0] if sources else -1
        assert length == times.makespan_ns[lane]


@given(
    st.sampled_from([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B]),
    st.integers(1, 7),
    st.integers(1, 20),
    DURATIONS,
    DURATIONS,
)
def test_bubble_of_equal_stages(schedule, ranks, microbatches, forward, half):
    """The bubble would be blamed on somebody: (p - 1) / (m + p - 1) of the step."""
    plan = make_plan(schedule, ranks, microbatches)
    costs = equal_stages(plan, forward, half, half)
    assert idle_ns(plan, costs) == (ranks - 1) * (forward + 2 * half)
    expected = fill_and_drain_frac(ranks, microbatches)
    assert replayed_bubble_frac(plan, costs) == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 6), st.integers(0, 20), st.integers(1, 4), DURATIONS, DURATIONS)
def test_chunks_divide_the_bubble(ranks, more, chunks, forward, half):
    """Interleaving would seem to help too much or too little: (p - 1) / (m v) of the ideal."""
    microbatches = ranks + more
    plan = make_plan(ScheduleKind.INTERLEAVED, ranks, microbatches, chunks)
    costs = equal_stages(plan, forward, half, half)
    ideal = microbatches * chunks * (forward + 2 * half)
    assert idle_ns(plan, costs) / ideal == pytest.approx((ranks - 1) / (microbatches * chunks))


@given(
    st.integers(1, 6), st.integers(0, 20), DURATIONS, st.integers(0, 10**9), st.integers(0, 10**9)
)
def test_bubble_of_zb_h1(ranks, more, weight, forward_more, input_more):
    """Fails when the idle time is not the paper's (p - 1)(T_F + T_B - T_W).

    Section 2.3: m >= p, T_W the shortest of the three.
    """
    plan = make_plan(ScheduleKind.ZB_H1, ranks, ranks + more)
    forward, backward_input = weight + forward_more, weight + input_more
    costs = equal_stages(plan, forward, backward_input, weight)
    assert idle_ns(plan, costs) == (ranks - 1) * (forward + backward_input - weight)


@given(st.integers(1, 6), st.integers(0, 20), DURATIONS)
def test_zb_v_is_idle_only_while_it_fills(ranks, more, one):
    """Fails when equal passes leave more idle than the fill, p - 1 passes of one chunk."""
    plan = make_plan(ScheduleKind.ZB_V, ranks, 2 * ranks - 1 + more, 2)
    assert idle_ns(plan, equal_stages(plan, one, one, one)) == (ranks - 1) * one


@given(st.integers(1, 6), st.integers(0, 20), DURATIONS)
def test_bubble_of_dualpipe_v(ranks, more, one):
    """Fails when equal passes leave more idle than p - 1 passes of one chunk, (p - 1) / (6 m)."""
    plan = make_plan(ScheduleKind.DUALPIPE_V, ranks, 2 * ranks + more, 2)
    assert idle_ns(plan, equal_stages(plan, one, one, one)) == (ranks - 1) * one


@settings(max_examples=20)
@given(plans(), st.integers(0, 10**6), st.integers(2, 5))
def test_a_slow_stage_lengthens_the_step_at_most_by_its_work(plan, item, factor):
    """Uneven stages would cost more than their own passes."""
    stages = plan.ranks * plan.chunks
    costs = equal_stages(plan, 10, 10, 10)
    forward = costs.forward_ns.copy()
    forward[item % stages] *= factor
    uneven = PassCosts(
        forward_ns=forward,
        backward_input_ns=costs.backward_input_ns,
        backward_weight_ns=costs.backward_weight_ns,
    )
    graph = schedule_graph(plan)
    even_ns = graph.times(costs.of_passes(plan)).makespan_ns[0]
    uneven_ns = graph.times(uneven.of_passes(plan)).makespan_ns[0]
    assert even_ns <= uneven_ns <= even_ns + 10 * (factor - 1) * plan.microbatches
