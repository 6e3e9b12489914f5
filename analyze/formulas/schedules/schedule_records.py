"""The published pipeline schedules, one record each: who may run them, and in which order.

The trainer runs these orders; analyses and plans replay them. A new schedule is a value of
``ScheduleKind``, its order in ``orders.py`` and its record here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import ScheduleKind

from ...wording.message import message
from . import orders
from .passes import Order

MANY = 0
"""Chunks a rank: two or more, as the layout says."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """One published schedule."""

    order: Callable[[int, int, int, int], Order]
    """Returns the passes of a rank, given its number, the ranks, microbatches and chunks."""
    chunks: int = 1
    """Stages of each rank, or ``MANY``."""
    is_v_shaped: bool = False
    """Whether a rank has two stages, down the ranks and back: the first rank has the last one."""
    splits_backward: bool = False
    """Whether the weights' half of a backward may come later than the inputs' half."""
    legs: int = 0
    """So many times its ranks are the fewest microbatches that fill it; 0: any number does."""
    fills_and_drains: bool = False
    """Whether its ranks idle while it fills and drains, and at no other time."""
    in_rounds: bool = False
    """Whether its microbatches go in rounds of as many as there are ranks."""
    holds_all: bool = False
    """Whether a rank holds every microbatch of a step at once."""
    overlaps_passes: bool = False
    """Whether it runs a forward and a backward pass at a time, as one block."""
    bubble: str
    """Idle over ideal time of a step between two others, as a formula of p ranks, m microbatches and v
    chunks, with equal stages and equal forward, inputs' and weights' passes."""

    def fits_chunks(self, chunks: int) -> bool:
        """Return whether a rank may have so many chunks."""
        return chunks > 1 if self.chunks == MANY else chunks == self.chunks

    def has_order(self, chunks: int) -> bool:
        """Return whether passes of so many chunks have an order; of one, interleaving is the plain one."""
        return self.fits_chunks(chunks) or (self.chunks == MANY and chunks == 1)

    def require_filled(self, ranks: int, microbatches: int, *, where: str) -> None:
        """Refuse fewer microbatches than fill the schedule.

        Raises:
            ConfigError: There are fewer.
        """
        least = self.legs * ranks
        if microbatches < least:
            raise ConfigError(
                message("refused.legs_not_filled", microbatches=microbatches, ranks=ranks),
                where=where,
                remedy=message("advice.use_at_least", least=least),
            )

    @property
    def chunks_text(self) -> str:
        """Return how many chunks a rank must have, in words."""
        return {MANY: "2 chunks or more", 1: "one chunk", 2: "exactly 2 chunks"}[self.chunks]


SCHEDULES = {
    ScheduleKind.GPIPE: Schedule(
        order=orders.gpipe, fills_and_drains=True, holds_all=True, bubble="(p-1)/m"
    ),
    ScheduleKind.ONE_F_ONE_B: Schedule(
        order=orders.one_f_one_b, fills_and_drains=True, bubble="(p-1)/m"
    ),
    ScheduleKind.INTERLEAVED: Schedule(
        order=orders.interleaved,
        chunks=MANY,
        fills_and_drains=True,
        in_rounds=True,
        bubble="(p-1)/(m v)",
    ),
    ScheduleKind.ZB_H1: Schedule(order=orders.zb_h1, splits_backward=True, bubble="(p-1)/(3 m)"),
    ScheduleKind.ZB_V: Schedule(
        order=orders.zb_v,
        chunks=2,
        is_v_shaped=True,
        splits_backward=True,
        bubble="0 from m = 2p - 1",
    ),
    # Its bubble is what the replay gives when the passes of a pair follow each other. DeepSeek states
    # (PP/2 - 1) (F&B + B - 3 W) with PP = 2 p: twice as much, since it counts a pair as one block.
    ScheduleKind.DUALPIPE_V: Schedule(
        order=orders.dualpipe_v,
        chunks=2,
        is_v_shaped=True,
        splits_backward=True,
        legs=2,
        overlaps_passes=True,
        bubble="(p-1)/(6 m)",
    ),
}
"""Bubbles: Narayanan et al. 2021, arXiv 2104.04473, section 2.2; Qi et al. 2023, arXiv 2401.10241,
sections 2.3 and 6."""

V_SHAPED = frozenset(kind for kind, one in SCHEDULES.items() if one.is_v_shaped)
SPLIT_BACKWARD = frozenset(kind for kind, one in SCHEDULES.items() if one.splits_backward)
FILL_AND_DRAIN = frozenset(kind for kind, one in SCHEDULES.items() if one.fills_and_drains)
OVERLAPPING = frozenset(kind for kind, one in SCHEDULES.items() if one.overlaps_passes)
CHUNKED = frozenset(kind for kind, one in SCHEDULES.items() if one.chunks != 1)


def schedule_names() -> str:
    """Return the names of all schedules, as an option's help and a remedy list them."""
    names = [kind.value for kind in SCHEDULES]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def rank_orders(kind: str, ranks: int, microbatches: int, chunks: int = 1) -> tuple[Order, ...]:
    """Return what each pipeline rank does in one step, in program order.

    Args:
        kind: A ``ScheduleKind``; ``none`` means one rank that does its microbatches in turn.
        ranks: Pipeline ranks.
        microbatches: Microbatches of a step.
        chunks: Stages of each rank.

    Raises:
        ConfigError: The schedule has no order here, or does not fit the sizes.
    """
    if min(ranks, microbatches, chunks) < 1:
        raise ConfigError(message("refused.sizes_below_1"), where="schedule")
    if kind == ScheduleKind.NONE and ranks > 1:
        raise ConfigError(
            message("refused.ranks_need_schedule", ranks=ranks),
            where="schedule",
            remedy=message("advice.choose_schedule", known=schedule_names()),
        )
    own = SCHEDULES.get(
        ScheduleKind.ONE_F_ONE_B if kind == ScheduleKind.NONE else ScheduleKind(kind)
    )
    if own is None:
        raise ConfigError(message("refused.order_not_known", schedule=kind), where="schedule")
    if not own.has_order(chunks):
        raise ConfigError(
            message("refused.chunks_of_rank", schedule=kind, needs=own.chunks_text),
            where="schedule",
            remedy=message("advice.vpp", chunks=own.chunks),
        )
    own.require_filled(ranks, microbatches, where="microbatches")
    return tuple(own.order(rank, ranks, microbatches, chunks) for rank in range(ranks))


def fill_and_drain_frac(ranks: int, microbatches: int, chunks: int = 1) -> float:
    """Return the idle share of a step with equal stages of GPipe and 1F1B: (p - 1) / (m v + p - 1).

    Narayanan et al. 2021, arXiv 2104.04473, section 2.2; also that of interleaved 1F1B in whole rounds.
    """
    return (ranks - 1) / (microbatches * chunks + ranks - 1)


def stages_of_rank(kind: str, rank: int, ranks: int, chunks: int = 1) -> tuple[int, ...]:
    """Return the stages in model order that a rank holds, by chunk."""
    if kind in V_SHAPED:
        return orders.v_stages(rank, ranks)
    return orders.looped_stages(rank, ranks, chunks)


def stage_of(kind: str, rank: int, chunk: int, ranks: int) -> int:
    """Return the stage in model order that a rank holds as its given chunk."""
    return stages_of_rank(kind, rank, ranks, chunk + 1)[chunk]


def rank_of_last_stage(kind: str, ranks: int) -> int:
    """Return the pipeline rank that holds the head and computes the loss."""
    return 0 if kind in V_SHAPED else ranks - 1
