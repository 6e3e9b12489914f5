"""The orders of the published schedules, read off their figures."""

import pytest

from meshscope.analyze.formulas.schedules import PassKind, rank_orders, stage_of
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import ScheduleKind


def text(order):
    """Return an order as in the figures: F0 is forward of microbatch 0, lower case in chunk 1."""
    first = min(one.stage for one in order)
    words = [f"{one.kind}{one.microbatch}" for one in order]
    return " ".join(
        word.lower() if one.stage > first else word for word, one in zip(words, order, strict=True)
    )


def test_one_f_one_b():
    """The fill of each rank would not match its place."""
    orders = rank_orders(ScheduleKind.ONE_F_ONE_B, 3, 4)
    assert text(orders[0]) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(orders[2]) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_one_f_one_b_with_fewer_microbatches_than_stages():
    """Short steps would lose or repeat a microbatch."""
    assert text(rank_orders(ScheduleKind.ONE_F_ONE_B, 4, 2)[0]) == "F0 F1 B0 B1"


def test_gpipe():
    """Backward passes would begin before the forward ones are over."""
    assert text(rank_orders(ScheduleKind.GPIPE, 2, 3)[1]) == "F0 F1 F2 B0 B1 B2"


def test_interleaved():
    """Chunks would not be visited in rounds of as many microbatches as there are ranks."""
    orders = rank_orders(ScheduleKind.INTERLEAVED, 2, 4, 2)
    assert text(orders[0]) == "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3"
    assert text(orders[1]) == "F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3"


def test_zb_h1():
    """Weights of a later rank would not wait longer."""
    orders = rank_orders(ScheduleKind.ZB_H1, 2, 3)
    assert text(orders[0]) == "F0 F1 I0 W0 F2 I1 W1 I2 W2"
    assert text(orders[1]) == "F0 I0 F1 I1 W0 F2 I2 W1 W2"


def test_zb_v_holds_the_last_stage_on_the_first_rank():
    """The chunks would not lie on the ranks as a V."""
    assert [stage_of(ScheduleKind.ZB_V, r, c, 2) for r in (0, 1) for c in (0, 1)] == [0, 3, 1, 2]
    assert text(rank_orders(ScheduleKind.ZB_V, 1, 2, 2)[0]) == "F0 f0 i0 w0 F1 I0 W0 f1 i1 w1 I1 W1"


def test_dualpipe_v_feeds_both_legs_at_once():
    """Forwards of one leg would not meet backwards of the other, and only the drain splits."""
    first, last = rank_orders(ScheduleKind.DUALPIPE_V, 2, 4, 2)
    assert text(first) == ("F0 F1 F2 f0 i0 w0 f1 F3 b1 f2 B0 b2 f3 B1 b3 I2 W2 I3 W3")
    assert text(last).startswith("F0 f0 F1 f1 F2 b0 f2 B0")
    halves = [one for one in last if one.kind in (PassKind.INPUT, PassKind.WEIGHT)]
    assert len(halves) == 4
    assert last[-4:] == tuple(halves)


@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks"),
    [
        (ScheduleKind.DUALPIPE_V, 3, 2),
        (ScheduleKind.DUALPIPE_V, 2, 1),
        (ScheduleKind.OTHER, 2, 1),
        (ScheduleKind.NONE, 2, 1),
        (ScheduleKind.ZB_V, 2, 1),
        (ScheduleKind.GPIPE, 2, 2),
        (ScheduleKind.ONE_F_ONE_B, 0, 1),
    ],
)
def test_what_does_not_fit_is_refused(schedule, ranks, chunks):
    """A wrong order would be generated without a word."""
    with pytest.raises(ConfigError):
        rank_orders(schedule, ranks, 4, chunks)
