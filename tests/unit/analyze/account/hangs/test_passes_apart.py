"""Which rank made other numbers of passes than the rest, and from which step on."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.hangs.passes_apart import passes_apart
from meshscope.probe.schema.layout import ParallelLayout

USUAL = (1, 1)


def job(odd=(), *, ranks=3, steps=4, bare=(), pp=1):
    """Return a job whose ranks make one forward and one backward pass a step.

    Args:
        odd: Forward and backward passes by rank and step where they are others.
        ranks: How many.
        steps: Whole steps of each.
        bare: Steps of which rank 0 recorded the length alone.
        pp: Stages of its pipeline.
    """
    at = [(rank, step) for rank in range(ranks) for step in range(steps)]
    return trace_of(
        layout=ParallelLayout(tp=1, pp=pp, dp=ranks // pp),
        step=[
            {"rank": rank, "step": step, "dur_ns": 1,
             "detail": "steps" if rank == 0 and step in bare else "full"}
            for rank, step in at
        ],
        span=[
            {"rank": rank, "step": step, "kind": kind, "start_ns": 0, "dur_ns": 1}
            for rank, step in at
            for kind, count in zip(
                ("forward", "backward"), dict(odd).get((rank, step), USUAL), strict=True
            )
            for _ in range(count)
        ],
    )  # fmt: skip


ALWAYS = {(2, step): (4, 4) for step in range(4)}


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, None),
        ({"odd": {(1, 2): (0, 0)}}, (2, 1, (1,), (0, 0), USUAL)),
        ({"odd": {(1, 2): (2, 1)}}, (2, 1, (1,), (2, 1), USUAL)),
        ({"odd": ALWAYS}, (0, 4, (2,), (4, 4), USUAL)),
        ({"odd": {(0, 1): (9, 1), (1, 3): (2, 2)}}, (3, 1, (1,), (2, 2), USUAL)),
        ({"odd": {(1, 2): (0, 0)}, "bare": (2,)}, None),
        ({"odd": {(1, 2): (0, 0)}, "ranks": 2}, None),
        ({"odd": {(1, 2): (0, 0), (2, 2): (0, 0)}, "ranks": 4}, None),
        ({"odd": ALWAYS, "ranks": 4, "pp": 2}, None),
    ],
    ids=[
        "all alike", "a step skipped", "a forward pass more", "unlike accumulation",
        "a backward pass counts more than an evaluation", "not recorded", "two ranks",
        "half of the ranks", "stages",
    ],
)  # fmt: skip
def test_the_first_step_in_which_few_ranks_made_other_passes_is_found(facts, found):
    """Fails when a rank that skipped a bad sample ends in order, and nobody is told in which step it did."""
    assert passes_apart(job(**facts)) == found
