"""Repair of stages whose layers are set in the same call.

Alone, the repair of a stage moves all that it takes more than the others, the cost of its layers
included: nothing else says how many it shall have. With ``--set layers`` the number of layers is
the user's, so that the repair is of the rest alone: what the passes of the stage take beyond their
layers (an output head, an embedding, or the stage is slow) goes to the stages that have less of
it. No work is moved twice, and none vanishes. Where all stages have as many layers now and
keep them, it is the repair that the stage has alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...tables.arrays import FloatArray, IntArray
from ...wording.message import Message, message
from .changes import Change

STAGE_REPAIRS = ("stage", "stage_imbalance")
"""Names of the repairs that take from a stage what it has more than others."""


@dataclass(frozen=True, slots=True)
class StageRepair:
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
