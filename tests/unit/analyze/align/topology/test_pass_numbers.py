"""Which microbatch a pass of a pipeline without a known schedule computed."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.align.topology.pass_numbers import with_passes_numbered

SENDS = [{"rank": 0, "peer": 1, "direction": "send", "start_ns": 0, "end_ns": 1}]


def numbered(passes, *, stage=-1, p2p=SENDS):
    """Return the numbers that passes get, in their order; a pass is its kind and old number."""
    spans = [
        {
            "rank": 0, "step": 3, "kind": kind, "stage": stage, "microbatch": number,
            "start_ns": 10 * at, "dur_ns": 5,
        }
        for at, (kind, number) in enumerate(passes)
    ]  # fmt: skip
    found = with_passes_numbered(trace_of(span=spans, p2p=p2p))
    return found.frame("span")["microbatch"].tolist()


F, B = "forward", "backward"
ONE_AHEAD = [(F, 0), (F, 0), (B, 0), (F, 1), (B, 1), ("optimizer", -1), (B, 2)]


def test_forwards_that_run_ahead_are_numbered_by_their_order():
    """Passes of different microbatches would be compared as if they were one's."""
    assert numbered(ONE_AHEAD) == [0, 1, 0, 2, 1, -1, 2]


@pytest.mark.parametrize("known", [{"stage": 0}, {"p2p": []}])
def test_numbers_that_a_schedule_gave_stay(known):
    """A schedule that runs microbatches out of order, or gradient accumulation, would be renumbered."""
    assert numbered(ONE_AHEAD, **known) == [number for _, number in ONE_AHEAD]


def test_a_forward_without_a_backward_leaves_the_step_as_it_is():
    """An evaluation in the middle of a step would shift the numbers of all that follow."""
    passes = [*ONE_AHEAD, (F, 3)]
    assert numbered(passes) == [number for _, number in passes]
