"""Layers of the stages: how many each has now, and what its passes cost with others.

A stage may be repaired whose layers are set in the same call. Alone, the repair of a stage moves all that it takes more than the others, the cost of its layers
included: nothing else says how many it shall have. With ``--set layers`` the number of layers is
the user's, so that the repair is of the rest alone: what the passes of the stage take beyond their
layers (an output head, an embedding, or the stage is slow) goes to the stages that have less of
it. No work is moved twice, and none vanishes. Where all stages have as many layers now and
keep them, it is the repair that the stage has alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.errors import ConfigError

from ...tables.arrays import FloatArray, IntArray
from ...wording.message import Message, message
from .changes import Change

STAGE_REPAIRS = ("stage", "stage_imbalance")
"""Names of the repairs that take from a stage what it has more than others."""


class StageRepair(msgspec.Struct, frozen=True):
    """What is to be repaired of the present stages."""

    fixes: tuple[Change, ...]
    holder: IntArray
    """Pipeline rank of every stage in model order, chunks included."""

    def named(self) -> npt.NDArray[np.bool_]:
        """Return which stages are repaired, ``(stage,)``."""
        found = np.zeros(len(self.holder), dtype=bool)
        for change in self.fixes:
            found |= self._meant(change)
        return found

    def messages(self, beyond_ns: FloatArray, cost_ns: FloatArray) -> Iterator[Message]:
        """Say what is done, in which order, and which repair finds nothing to do.

        Args:
            beyond_ns: What the stages take beyond their layers, ``(kind, stage)``.
            cost_ns: What they take at all.
        """
        taken = taken_frac(beyond_ns, np.where(self.named(), beyond_ns, 0.0)) * beyond_ns.sum(0)
        worked: list[Message] = []
        for change in self.fixes:
            own = self._meant(change)
            if taken[own].sum() > 0:
                share = taken[own].sum() / cost_ns[:, own].sum()
                worked.append(message("whatif.repaired_stage", asked=_asked(change), share=share))
            else:
                yield message("whatif.no_loss_beyond_layers", asked=_asked(change))
        if worked:
            yield message("whatif.order_of_repairs", repaired=worked)

    def _meant(self, change: Change) -> npt.NDArray[np.bool_]:
        if change.name == "stage":
            return np.asarray(self.holder == change.whole())
        return np.ones(len(self.holder), dtype=bool)


def taken_frac(beyond_ns: FloatArray, repaired_ns: FloatArray) -> FloatArray:
    """Return which share of what is repaired on each stage goes to others, ``(stage,)``.

    Args:
        beyond_ns: What the stages take beyond their layers, ``(kind, stage)``.
        repaired_ns: The part of it that is to be repaired.
    """
    whole, own = beyond_ns.sum(axis=0), np.maximum(repaired_ns.sum(axis=0), 0.0)
    taken = np.minimum(np.maximum(whole - whole.mean(), 0.0), own)
    return np.asarray(np.divide(taken, own, out=np.zeros_like(own), where=own > 0))


def spread_over_light(beyond_ns: FloatArray, repaired_ns: FloatArray) -> FloatArray:
    """Return what stages take beyond their layers after the repair, ``(kind, stage)``.

    A repaired stage keeps the mean of all stages. What it has more fills up those that have less
    than that mean, each in proportion to what it lacks. The sum over the stages stays.

    Args:
        beyond_ns: What they take now.
        repaired_ns: The part of it that is to be repaired.
    """
    taken = repaired_ns * taken_frac(beyond_ns, repaired_ns)
    whole = beyond_ns.sum(axis=0)
    lacks = np.maximum(whole.mean() - whole, 0.0)
    # Of equal stages rounding may leave one above the mean and none below it.
    if not taken.any() or not lacks.any():
        return beyond_ns
    return np.asarray(beyond_ns - taken + taken.sum(axis=1)[:, None] * (lacks / lacks.sum()))


def _asked(change: Change) -> str:
    return f"{change.name}={change.value}" if change.value else change.name


ROUNDS = 0.5
"""A cost that is further from a whole number of layers belongs to the next one."""
MAX_CHANCE = 0.05
"""Costs of any kind are as near to whole numbers of layers with this probability."""
LEAST_BETWEEN = 3
"""Stages between the ends whose median is robust against a slow one."""
LEAST_ALIKE = 2
"""So many stages that cost the same tell what a repaired one has beyond its layers."""


def stage_costs(
    cost_ns: FloatArray,
    stages: int,
    change: Change | None,
    total: object,
    repair: StageRepair | None = None,
) -> tuple[FloatArray, list[Message]]:
    """Return what the passes of every stage take after a change, and what was assumed.

    Args:
        cost_ns: What they take now, ``(kind, stage)``.
        stages: Number of stages then.
        change: The layers that are wanted; None to cut the model evenly if the number of
            stages changes.
        total: Layers of the model, if that is known.
        repair: Stages that are repaired before layers move; it needs a change.

    Raises:
        ConfigError: The layers do not fit, or those of now cannot be known.
    """
    if change is None and stages == cost_ns.shape[1]:
        return cost_ns, []
    if change is None:
        found = inferred_layers(cost_ns.sum(axis=0), total) if isinstance(total, int) else None
        now = np.ones(cost_ns.shape[1]) if found is None else found.astype(np.float64)
        said = [message("whatif.even_layers", stages=stages), message("whatif.ends_stay")]
        return moved_costs(cost_ns, now, np.full(stages, now.sum() / stages)), said
    stated, then = change.layers()
    _check_split(change, then, stages, total)
    if stated is not None:
        _check_split(change, stated, cost_ns.shape[1], total)
        now, said = np.array(stated, np.float64), []
        if sum(stated) != sum(then):
            raise ConfigError(
                message(
                    "refused.layers_differ", layers=change.value, now=sum(stated), then=sum(then)
                ),
                where="--set",
                remedy=message("advice.same_layers"),
            )
    else:
        now, said = _judged(cost_ns.sum(axis=0), then, repair)
    if repair is not None:
        said += repair.messages(beyond_layers(cost_ns, now), cost_ns)
    ends = message("whatif.ends_stay") if repair is None else message("whatif.left_stays")
    said.append(ends)
    return moved_costs(cost_ns, now, np.array(then, np.float64), repair), said


def _judged(
    cost_ns: FloatArray, then: list[int], repair: StageRepair | None
) -> tuple[FloatArray, list[Message]]:
    """Return the layers of now as their cost tells them, and the doubt about that."""
    found = inferred_layers(cost_ns, sum(then))
    if found is None and repair is not None:
        found = _equal(cost_ns, sum(then), heavy=repair.named())
    if found is None:
        raise _unknown(len(cost_ns), sum(then))
    now, wanted = (",".join(map(str, split)) for split in (found, then))
    doubt = message("whatif.judged_layers", now=now, wanted=wanted)
    return found.astype(np.float64), [doubt]


def _check_split(change: Change, split: list[int], stages: int, total: object) -> None:
    """Refuse a split that has other stages or layers than the model."""
    is_known = isinstance(total, int)
    # The ends may have no layers: embedding and head are work of their own.
    inner = split[1:-1] if stages > 2 else []
    fits = len(split) == stages and sum(split) > 0 and min([1, *inner]) > 0
    if fits and (not is_known or sum(split) == total):
        return
    advice = (
        message("advice.layers_over_stages", layers=total, stages=stages)
        if is_known
        else message("advice.layers_of_stages", stages=stages)
    )
    raise ConfigError(message("refused.layers", layers=change.value), where="--set", remedy=advice)


def inferred_layers(cost_ns: FloatArray, total: int) -> IntArray | None:
    """Return the layers that each stage seems to have; None where nothing fits.

    The first of these that fits:

    * equal stages, of which the last may cost more than the others, for the output head;
    * costs in proportion to whole numbers of layers everywhere, nearer than by chance.

    Uneven layers beside a heavy head, or a heavy embedding, fit too many splits for one of
    them to be named.

    Args:
        cost_ns: What the passes of each stage take.
        total: Layers of the model.

    Examples:
        Stages that cost 8, 8, 8, 11 with 32 layers have 8 each and a head worth 3;
        such that cost 9, 8, 8, 7 have as many.
    """
    even = _equal(cost_ns, total)
    return _proportional(cost_ns, total) if even is None else even


def _equal(
    cost_ns: FloatArray, total: int, heavy: npt.NDArray[np.bool_] | None = None
) -> IntArray | None:
    """Return equal layers if the costs fit them, but for the last stage and heavy ones.

    Args:
        cost_ns: What the passes of each stage take.
        total: Layers of the model.
        heavy: Stages that may cost more, for they are to be repaired. At least two others,
            the last not counted, must agree then.
    """
    stages = len(cost_ns)
    if total % stages:
        return None
    alike = np.arange(stages) < stages - 1
    # An embedding is no measure either, where there are stages between it and the head.
    compared = alike if stages == 2 else alike & (np.arange(stages) > 0)
    if heavy is not None:
        alike = compared = alike & ~heavy
        if alike.sum() < LEAST_ALIKE:
            return None
    off = (cost_ns / np.median(cost_ns[compared]) - 1.0) * (total / stages)
    fits = (np.abs(off[alike]) < ROUNDS).all() and (off > -ROUNDS).all()
    return np.full(stages, total // stages) if fits else None


def _proportional(cost_ns: FloatArray, total: int) -> IntArray | None:
    layers = cost_ns * total / cost_ns.sum()
    whole = np.rint(layers).astype(np.int64)
    # The stages but one are each within x of a whole number with the chance 2 x.
    near = ROUNDS * MAX_CHANCE ** (1 / max(len(cost_ns) - 1, 1))
    fits = (np.abs(layers - whole) < near).all() and whole.sum() == total and whole.min() > 0
    return whole if fits else None


def moved_costs(
    cost_ns: FloatArray, now: FloatArray, then: FloatArray, repair: StageRepair | None = None
) -> FloatArray:
    """Return what the passes of each stage take with other layers, ``(kind, stage)``.

    A layer costs the median of the stages between the ends (see ``layer_cost``). What a stage takes
    beyond its layers stays, unless it is repaired: on the first and the last stage of the model,
    whichever these are then, else on its place in the model.

    Args:
        cost_ns: What they take now, ``(kind, stage)``.
        now: Layers of the stages now.
        then: Layers of as many stages, or of more or fewer.
        repair: Whose work beyond the layers goes to others.
    """
    beyond = beyond_layers(cost_ns, now)
    placed = _placed(beyond, len(then))
    if repair is not None:
        placed = spread_over_light(
            placed, _placed(np.where(repair.named(), beyond, 0.0), len(then))
        )
    layer = layer_cost(cost_ns, now)[:, None]
    return np.asarray(np.maximum(layer * then + placed, 0.0))


def beyond_layers(cost_ns: FloatArray, now: FloatArray) -> FloatArray:
    """Return what the passes of each stage take beyond its layers, ``(kind, stage)``.

    Args:
        cost_ns: What they take, ``(kind, stage)``.
        now: Layers of the stages.
    """
    return np.asarray(cost_ns - layer_cost(cost_ns, now)[:, None] * now)


def layer_cost(cost_ns: FloatArray, now: FloatArray) -> FloatArray:
    """Return what a layer costs, ``(kind,)``: the median of the stages between the ends.

    With fewer than three of them it is that of the stage that is lightest per layer: the ends
    have embedding and head, and one of two may be slow.
    """
    each = cost_ns / np.where(now > 0, now, np.nan)
    inner = each[:, 1:-1]
    if inner.shape[1] >= LEAST_BETWEEN:
        return np.asarray(np.nanmedian(inner, axis=1))
    lightest = int(np.nanargmin(each.sum(axis=0)))
    return np.asarray(each[:, lightest])


def _placed(beyond: FloatArray, after: int) -> FloatArray:
    """Return where it is that stages take more than their layers, with so many stages."""
    before = beyond.shape[1]
    placed = np.zeros((len(beyond), after))
    placed[:, 0] += beyond[:, 0]
    placed[:, -1] += beyond[:, -1]
    if before > 2:
        between = slice(1, -1) if after > 2 else slice(None)
        placed[:, between] += beyond[:, 1:-1] @ _shared(before - 2, placed[:, between].shape[1])
    return placed


def _shared(before: int, after: int) -> FloatArray:
    """Return which share of each of the former equal parts of a line lies in each of the new."""
    old, new = np.arange(before)[:, None] / before, np.arange(after) / after
    start = np.maximum(old, new)
    end = np.minimum(old + 1 / before, new + 1 / after)
    return np.asarray(np.clip(end - start, 0.0, None) * before)


def _unknown(stages: int, total: int) -> ConfigError:
    """Return the error of a present split that cannot be known."""
    even = ",".join(str(len(part)) for part in np.array_split(np.arange(total), stages))
    return ConfigError(
        message("refused.layers_of_now"),
        where="--set layers",
        remedy=message("advice.layers_of_now", even=even),
    )
