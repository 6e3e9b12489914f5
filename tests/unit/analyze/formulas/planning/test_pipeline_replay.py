"""Idle time and held activations of a schedule, against the published formulas."""

from __future__ import annotations

import pytest

from meshscope.analyze.formulas.planning.pipeline_replay import held_peak, replay
from meshscope.analyze.formulas.schedules import Pass, PassKind, rank_orders


def cost(kind, ranks, microbatches, chunks=1):
    """Replay equal stages."""
    orders = rank_orders(kind, ranks, microbatches, chunks)
    return replay(orders, lambda _stage: 1 / chunks)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 64)])
def test_the_published_formulas_come_out(ranks, microbatches):
    """Fails if an order wastes more, or less, than its paper says it must."""
    fill = (ranks - 1) / microbatches
    for kind in ("gpipe", "1f1b"):
        assert cost(kind, ranks, microbatches).idle_over_ideal == pytest.approx(fill)
    for chunks in (2, 4):
        interleaved = cost("interleaved-1f1b", ranks, microbatches, chunks)
        assert interleaved.idle_over_ideal == pytest.approx(fill / chunks)
    assert cost("zb-h1", ranks, microbatches).idle_over_ideal == pytest.approx(fill / 3)
    assert cost("zb-v", ranks, microbatches, 2).idle_over_ideal == pytest.approx(0)
    assert cost("dualpipe-v", ranks, microbatches, 2).idle_over_ideal == pytest.approx(fill / 6)


def test_shares_of_step_and_of_ideal_time_belong_together():
    """Fails if the bubble is related to the wrong denominator."""
    found = cost("1f1b", 4, 12)
    assert found.idle_over_ideal == pytest.approx(3 / 12)
    assert found.idle_frac == pytest.approx(3 / 15)


def test_an_unequal_stage_sets_the_pace():
    """Fails if the cost of stages does not reach the replay."""
    orders = rank_orders("1f1b", 2, 50)
    assert replay(orders, (2.0, 1.0).__getitem__).idle_over_ideal > 0.33


def test_ranks_that_wait_for_each_other_are_found():
    """Fails if an impossible order ends in an endless loop."""
    backward_first = (Pass(PassKind.BACKWARD, 0, 0), Pass(PassKind.FORWARD, 0, 0))
    other = (Pass(PassKind.FORWARD, 1, 0), Pass(PassKind.BACKWARD, 1, 0))
    with pytest.raises(ValueError, match="for ever"):
        replay([backward_first, other], lambda _stage: 1.0)


def test_held_activations_are_those_of_the_papers():
    """Fails if memory is predicted for another order than the one that runs."""

    def held(kind, rank, chunks=1):
        order = rank_orders(kind, 8, 32, chunks)[rank]
        return held_peak(order, lambda _stage: 1 / chunks)

    assert held("gpipe", 3) == 32
    assert [held("1f1b", rank) for rank in (0, 3, 7)] == [8, 5, 1]
    # Narayanan et al. 2021, arXiv 2104.04473: p (1 + (p - 1) / (p v)).
    assert held("interleaved-1f1b", 0, 2) == 8 + 7 / 2
    assert [held("zb-h1", rank) for rank in (0, 7)] == [8, 8]
    assert [held("zb-v", rank, 2) for rank in (0, 7)] == [8, 8]
