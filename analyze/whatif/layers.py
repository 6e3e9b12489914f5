"""Layers of the stages: how many each has now, and what its passes cost with others."""

from __future__ import annotations

import numpy as np

from meshscope.probe.schema.errors import ConfigError

from ..arrays import FloatArray, IntArray
from .changes import Change

ROUNDS = 0.5
"""A cost that is further from a whole number of layers belongs to the next one."""
MAX_CHANCE = 0.05
"""Costs of any kind are as near to whole numbers of layers with this probability."""


def stage_costs(
    cost_ns: FloatArray, stages: int, change: Change | None, total: object
) -> tuple[FloatArray, list[str]]:
    """Return what the passes of every stage take after a change, and what was assumed.

    Args:
        cost_ns: What they take now, ``(kind, stage)``.
        stages: Number of stages then.
        change: The layers that are wanted; None to cut the model evenly if the number of
            stages changes.
        total: Layers of the model, if that is known.

    Raises:
        ConfigError: The layers do not fit, or those of now cannot be told.
    """
    if change is None and stages == cost_ns.shape[1]:
        return cost_ns, []
    beyond = "what a stage takes beyond its layers (embedding, output head) stays with it"
    if change is None:
        found = inferred_layers(cost_ns.sum(axis=0), total) if isinstance(total, int) else None
        now = np.ones(cost_ns.shape[1]) if found is None else found.astype(np.float64)
        cut = f"the layers are spread evenly over the {stages} stages"
        return moved_costs(cost_ns, now, np.full(stages, now.sum() / stages)), [cut, beyond]
    stated, then = change.layers()
    _check_split(change, then, stages, total)
    if stated is not None:
        _check_split(change, stated, cost_ns.shape[1], total)
        now, doubt = np.array(stated, np.float64), list[str]()
        if sum(stated) != sum(then):
            raise ConfigError(
                f"layers={change.value} has {sum(stated)} layers now and {sum(then)} then",
                where="--set",
                remedy="Give as many layers as the model has on both sides",
            )
    else:
        now, doubt = _judged(cost_ns.sum(axis=0), then)
    return moved_costs(cost_ns, now, np.array(then, np.float64)), [*doubt, beyond]


def _judged(cost_ns: FloatArray, then: list[int]) -> tuple[FloatArray, list[str]]:
    """Return the layers of now as their cost tells them, and the doubt about that."""
    found = inferred_layers(cost_ns, sum(then))
    if found is None:
        raise _unknown(len(cost_ns), sum(then))
    text = ",".join(map(str, found))
    doubt = (
        f"the stages have {text} layers now, judged by what they cost, which no record confirms; "
        f"if that is wrong, state it: --set 'layers=NOW->{','.join(map(str, then))}'"
    )
    return found.astype(np.float64), [doubt]


def _check_split(change: Change, split: list[int], stages: int, total: object) -> None:
    """Refuse a split that has other stages or layers than the model."""
    is_known = isinstance(total, int)
    if len(split) == stages and min(split) > 0 and (not is_known or sum(split) == total):
        return
    of_model = f"{total} layers over " if is_known else ""
    raise ConfigError(
        f"layers={change.value} does not fit the run",
        where="--set",
        remedy=f"Give {of_model}{stages} stages, each with one layer or more",
    )


def inferred_layers(cost_ns: FloatArray, total: int) -> IntArray | None:
    """Return the layers that each stage seems to have; None where nothing fits.

    The first of these that fits:

    * equal stages, of which the last may cost more than the others, for the output head;
    * costs in proportion to whole numbers of layers everywhere, nearer than by chance.

    Uneven layers beside a heavy head, or a heavy embedding, fit too many splits for one of
    them to be told.

    Args:
        cost_ns: What the passes of each stage take.
        total: Layers of the model.

    Examples:
        Stages that cost 8, 8, 8, 11 with 32 layers have 8 each and a head worth 3;
        such that cost 9, 8, 8, 7 have as many.
    """
    even = _equal(cost_ns, total)
    return _proportional(cost_ns, total) if even is None else even


def _equal(cost_ns: FloatArray, total: int) -> IntArray | None:
    stages = len(cost_ns)
    if total % stages:
        return None
    inner = cost_ns[1:-1] if stages > 2 else cost_ns[:1]
    layers = cost_ns * (total / stages) / np.median(inner)
    off = layers - total / stages
    fits = (np.abs(off[:-1]) < ROUNDS).all() and off[-1] > -ROUNDS
    return np.full(stages, total // stages) if fits else None


def _proportional(cost_ns: FloatArray, total: int) -> IntArray | None:
    layers = cost_ns * total / cost_ns.sum()
    whole = np.rint(layers).astype(np.int64)
    # The stages but one are each within x of a whole number with the chance 2 x.
    near = ROUNDS * MAX_CHANCE ** (1 / max(len(cost_ns) - 1, 1))
    fits = (np.abs(layers - whole) < near).all() and whole.sum() == total and whole.min() > 0
    return whole if fits else None


def moved_costs(cost_ns: FloatArray, now: FloatArray, then: FloatArray) -> FloatArray:
    """Return what the passes of each stage take with other layers, ``(kind, stage)``.

    A layer costs what it costs on the stage that is lightest per layer. What a stage takes
    beyond its layers stays: on the first and the last stage of the model, whichever these
    are then, else on its place in the model.

    Args:
        cost_ns: What they take now, ``(kind, stage)``.
        now: Layers of the stages now.
        then: Layers of as many stages, or of more or fewer.
    """
    lightest = (cost_ns.sum(axis=0) / now).argmin()
    layer = (cost_ns[:, lightest] / now[lightest])[:, None]
    beyond = cost_ns - layer * now
    before, after = len(now), len(then)
    moved = layer * then
    moved[:, 0] += beyond[:, 0]
    moved[:, -1] += beyond[:, -1]
    if before > 2:
        between = slice(1, -1) if after > 2 else slice(None)
        moved[:, between] += beyond[:, 1:-1] @ _shared(before - 2, moved[:, between].shape[1])
    return np.asarray(np.maximum(moved, 0.0))


def _shared(before: int, after: int) -> FloatArray:
    """Return which share of each of the former equal parts of a line lies in each of the new."""
    old, new = np.arange(before)[:, None] / before, np.arange(after) / after
    start = np.maximum(old, new)
    end = np.minimum(old + 1 / before, new + 1 / after)
    return np.asarray(np.clip(end - start, 0.0, None) * before)


def _unknown(stages: int, total: int) -> ConfigError:
    """Return the error of a present split that cannot be told."""
    even = ",".join(str(len(part)) for part in np.array_split(np.arange(total), stages))
    return ConfigError(
        "what the stages cost does not tell how many layers each has now",
        where="--set layers",
        remedy=f"State it before the new one: --set 'layers={even}->…', with what the job has now",
    )
