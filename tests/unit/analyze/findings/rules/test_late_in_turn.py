"""Ranks that are late at the same operations of every step are not late by chance."""

import pandas as pd
import pytest

from meshscope.analyze.findings.rules.late_in_turn import late_in_turn

STEP, APART = 1_000_000, 100_000


def events(last, *, steps=4, late=10_000):
    """Return two ranks' collectives of each step, of which ``last(step, place)`` is the last rank."""
    rows = []
    for step in range(steps):
        for place in range(2):
            at = step * STEP + place * APART
            for rank in range(2):
                start = at + (late if rank == last(step, place) else 0)
                rows.append((rank, step, 2 * step + place, start, False))
    return pd.DataFrame(rows, columns=["rank", "step", "join", "start_ns", "is_p2p"])


def test_each_at_its_own_operation():
    """Fails when a pipeline without the names of its sends, or unequal phases, are told as chance."""
    found = [one.values for one in late_in_turn(events(lambda _, place: place))]
    assert found == [{"rank": 0, "count": 1}, {"rank": 1, "count": 1}]


@pytest.mark.parametrize(
    ("last", "options"),
    [
        (lambda step, place: (step + place) % 2, {}),
        (lambda step, place: int(step in (1, 2)), {}),
        (lambda _, place: 1, {}),
        (lambda _, place: place, {"steps": 2}),
        (lambda _, place: place, {"late": 0}),
    ],
    ids=["another in each step", "some steps", "always one rank", "few steps", "nobody waits"],
)
def test_others_are_none(last, options):
    """Fails when chance, one slow rank, or too few steps count as ranks in turn."""
    assert late_in_turn(events(last, **options)) == []


def test_sends_and_unmatched_operations_do_not_count():
    """Fails when what joins nobody tells who is late."""
    table = events(lambda _, place: place)
    assert late_in_turn(table.assign(is_p2p=True)) == []
    assert late_in_turn(table.assign(join=-1)) == []
