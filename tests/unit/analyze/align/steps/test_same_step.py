"""Steps of ranks that began at different times are paired by what they issue together, or not at all."""

from dataclasses import replace

from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.align.steps.same_step import with_matched_steps
from meshscope.analyze.align.steps.windows import step_windows

LATE = 1_000_000
"""When ranks 2 and 3 join."""


def growing(ties=("all",), numbers=range(5)):
    """Return a job of ranks 0 and 1, which 2 and 3 join at ``LATE`` after 5 steps of 10 ns.

    Args:
        ties: Groups of the steps together: ``all``, or ``own`` of each pair alone.
        numbers: Positions of the steps together in those of the late ranks.
    """
    steps, collectives = [], []
    pairs = {"early": (0, 1), "late": (2, 3), "all": (0, 1, 2, 3)}
    for at in range(5):
        for rank in (0, 1):
            steps.append({"rank": rank, "step": at, "start_ns": 10 * at, "dur_ns": 10})
            collectives.append({"rank": rank, "step": at, "group_id": "early", "seq": at,
                                "start_ns": 10 * at, "end_ns": 10 * at + 5})  # fmt: skip
        for rank, step in ((0, 5 + at), (1, 5 + at), (2, numbers[at]), (3, numbers[at])):
            start_ns = LATE + 10 * at
            steps.append({"rank": rank, "step": step, "start_ns": start_ns, "dur_ns": 10})
            names = ["late" if rank > 1 else "early"] if "own" in ties else []
            collectives += [
                {"rank": rank, "step": step, "group_id": name, "seq": 100 + at,
                 "start_ns": start_ns, "end_ns": start_ns + 5}
                for name in (*names, *(["all"] if "all" in ties else []))
            ]  # fmt: skip
    trace = trace_of(
        origin="meshscope",
        ranks=(0, 1, 2, 3),
        step=steps,
        collective=collectives,
        span=[{"rank": 2, "step": 0, "kind": "forward", "start_ns": LATE, "dur_ns": 3}],
        kernel=[{"rank": 2, "step": 0, "start_ns": LATE, "dur_ns": 3}],
        group=[{"group_id": name, "ranks": list(ranks)} for name, ranks in pairs.items()],
    )
    return replace(trace, clocks=dict.fromkeys(range(4), "one"))


def test_late_ranks_are_renumbered_by_what_they_issue_together():
    """Fails when step 3 before the others came is compared with their own step 3."""
    found = with_matched_steps(growing())
    windows = step_windows(found)
    assert windows.steps.tolist() == [6, 7, 8, 9]
    assert windows.frame["start_ns"].min() == 0
    assert windows.frame["end_ns"].max() == 40
    for name in ("span", "kernel"):
        assert found.frame(name)["step"].tolist() == [5], name
    assert any("ranks 2 and 3 by 5" in limit for limit in texts(found.limits))


def test_steps_that_nothing_ties_are_not_paired():
    """Fails when ranks that never communicate with each other are compared over another time."""
    trace = with_matched_steps(growing(ties=("own",)))
    assert trace.frame("step")["step"].max() == 9
    windows = step_windows(trace)
    assert not len(windows.steps)
    assert any(
        "5 of 5 steps left out: they lie at different times" in limit
        for limit in texts(windows.limits)
    )


def test_offsets_that_contradict_each_other_move_nothing():
    """Fails when a few operations that a rank numbered otherwise shift the whole of it."""
    trace = with_matched_steps(growing(numbers=(0, 2, 3, 1, 4)))
    assert sorted(set(trace.frame("span")["step"])) == [0]


def test_ranks_that_drift_but_communicate_in_equal_steps_stay_paired():
    """Fails when a slow replica, which averages its model now and then, is left out for being late."""
    steps = [
        {"rank": rank, "step": at, "start_ns": (30 * at if rank else 10 * at), "dur_ns": 10}
        for rank in (0, 1)
        for at in range(10)
    ]
    sums = [{"rank": rank, "step": 9, "seq": 1, "start_ns": 300, "end_ns": 310} for rank in (0, 1)]
    trace = trace_of(origin="meshscope", step=steps, collective=sums, group=[{"ranks": [0, 1]}])
    trace = replace(trace, clocks={0: "one", 1: "one"})
    assert with_matched_steps(trace) is trace
    assert step_windows(trace).steps.tolist() == list(range(1, 10))


def test_a_step_between_two_that_join_all_ranks_is_the_same_on_all():
    """Fails when the update of which two halves of a job agree at different times is left out."""
    steps, collectives = [], []
    for at in range(8):
        for rank in range(4):
            # In odd steps the halves train alone, one after the other.
            start_ns = 100 * at + (50 if at % 2 and rank > 1 else 0)
            steps.append({"rank": rank, "step": at, "start_ns": start_ns, "dur_ns": 40})
            name = ("early" if rank < 2 else "late") if at % 2 else "all"
            collectives.append({"rank": rank, "step": at, "group_id": name, "seq": at,
                                "start_ns": start_ns, "end_ns": start_ns + 5})  # fmt: skip
    groups = {"early": [0, 1], "late": [2, 3], "all": [0, 1, 2, 3]}
    group = [{"group_id": name, "ranks": ranks} for name, ranks in groups.items()]
    trace = trace_of(origin="meshscope", step=steps, collective=collectives, group=group)
    windows = step_windows(replace(trace, clocks=dict.fromkeys(range(4), "one")))
    assert windows.steps.tolist() == list(range(1, 7))
    assert any(
        "1 of 8 steps left out: they lie at different times" in limit
        for limit in texts(windows.limits)
    )
