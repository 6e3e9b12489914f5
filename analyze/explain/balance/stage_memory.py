"""What each stage would hold with other layers, from what the stages held.

With n layers and k microbatches in flight a stage holds ``n (a + b k) + extra``: a for the states of a
layer, b for its activations of one microbatch. a and b are fitted to the stages between the ends, k
comes from the order of the schedule; what the ends hold beyond stays with them.

Where the formulas of ``planning`` know the run, a and b are theirs. Where too few stages lie between
the ends, a layer holds at most its part of the stage, and of every other stage by its microbatches in
flight: then what a stage holds with more layers is an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...account.memory.by_stage import used_bytes
from ...formulas.planning.memory import chunks_in_flight
from ...formulas.planning.terms import Category
from ...tables.arrays import FloatArray
from ..memory.expected import ExpectedMemory
from ..run_account import Account
from ..whatif.pipeline import Pipeline

_LEAST_BETWEEN = 3
"""Stages between the ends that separate states from activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryByStage:
    """Bytes by pipeline rank."""

    layer_bytes: FloatArray
    """Of one layer there, with its microbatches in flight."""
    extra_bytes: FloatArray
    """Beside the layers."""
    capacity_bytes: float | None
    """Of the smallest device; None: unknown."""

    present_bytes: FloatArray | None = None
    """What each rank holds now, where a layer's bytes are upper bounds; None: they are estimates."""

    def of_split(self, split: Sequence[int]) -> tuple[float, ...]:
        """Return what each rank holds with so many layers a stage, in model order."""
        ranks = len(self.layer_bytes)
        layers = np.array(split, np.float64).reshape(-1, ranks).sum(axis=0)
        held = layers * self.layer_bytes + self.extra_bytes
        if self.present_bytes is not None:
            # A stage that loses layers may lose less than the bound of a layer.
            held = np.maximum(held, self.present_bytes)
        return tuple(held.tolist())

    def least_bytes(self, layers: int) -> float:
        """Return the least memory of a device under which some split of the layers fits."""
        # The least is what some rank holds with a whole number of layers.
        held = self.extra_bytes[:, None] + self.layer_bytes[:, None] * np.arange(layers + 1)
        sizes = np.unique(held[held >= self.extra_bytes.max()])
        fits = [(held <= size).sum() - len(held) >= layers for size in sizes]
        return float(sizes[int(np.argmax(fits))])


def memory_of_stages(
    account: Account, pipeline: Pipeline, now: Sequence[int]
) -> MemoryByStage | None:
    """Return the memory of a layer by rank; None where the capture does not tell it."""
    frame = account.memory
    ranks = pipeline.ranks
    if frame.empty or len(frame) != ranks or frame["peak_bytes"].isna().any():
        return None
    frame = frame.sort_values("stage")
    held = used_bytes(frame).to_numpy(np.float64)
    layers = np.array(now, np.float64).reshape(-1, ranks).sum(axis=0)
    flight = np.array(
        chunks_in_flight(pipeline.schedule, ranks, pipeline.microbatches, pipeline.chunks)
    )
    present = None
    layer_bytes = _by_formulas(account.expectation.found, ranks)
    if layer_bytes is None:
        layer_bytes = _by_stages_between(held, layers, flight)
    if layer_bytes is None:
        layer_bytes, present = _at_most(held, layers, flight), held
    capacity = frame["capacity_bytes"].dropna()
    return MemoryByStage(
        layer_bytes=layer_bytes,
        extra_bytes=np.asarray(held - layers * layer_bytes),
        capacity_bytes=float(capacity.min()) if len(capacity) else None,
        present_bytes=present,
    )


def _by_formulas(expected: ExpectedMemory | None, ranks: int) -> FloatArray | None:
    """Return the bytes of a layer by the formulas, None where they do not know the run."""
    if expected is None or len(expected.stages) != ranks:
        return None
    if any(one.layers < 1 for one in expected.stages):
        return None
    states = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER)
    found = []
    for one in expected.stages:
        outside = one.parameters.vocabulary / one.parameters.total
        of_states = sum(one.total(kind) for kind in states) * (1.0 - outside)
        found.append((of_states + one.total(Category.ACTIVATIONS)) / one.layers)
    return np.array(found, np.float64)


def _by_stages_between(
    held: FloatArray, layers: FloatArray, flight: FloatArray
) -> FloatArray | None:
    """Return a + b k fitted to the stages between the ends, None where they are too few."""
    between = slice(1, -1)
    if len(held) - 2 < _LEAST_BETWEEN or (layers[between] < 1).any():
        return None
    each = held[between] / layers[between]
    design = np.stack([np.ones(len(each)), flight[between]], axis=1)
    states, activations = np.linalg.lstsq(design, each, rcond=None)[0]
    if activations < 0 or states < 0:
        states, activations = float(np.median(each)), 0.0
    return np.asarray(states + activations * flight, np.float64)


def _at_most(held: FloatArray, layers: FloatArray, flight: FloatArray) -> FloatArray:
    """Return the most that a layer can hold on each stage.

    Of its own stage at most its part; of another one that part with its own microbatches in flight.
    """
    each = np.where(layers > 0, held / np.maximum(layers, 1.0), np.inf)
    scale = np.maximum(1.0, flight[:, None] / flight[None, :])
    return np.asarray((each[None, :] * scale).min(axis=1))
