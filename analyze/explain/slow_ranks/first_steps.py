"""The first steps of a running job, kept until they tell what is usual."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...tables.arrays import FloatArray
from .cube import Cube


@dataclass(slots=True)
class FirstSteps:
    """Durations, and what is known of their work, in the order of the steps."""

    cube: Cube
    kinds: int
    _durations: list[FloatArray] = field(default_factory=list)
    _features: list[FloatArray | None] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the number of steps, kinds and items."""
        items = max(step.shape[-1] for step in self._durations)
        return len(self._durations), self.kinds, items

    def add(self, durations: FloatArray, features: FloatArray | None) -> None:
        """Keep one more step [lane, replica, place, kind, item] and its features."""
        self._durations.append(durations)
        self._features.append(features)

    def step(self, position: int) -> FloatArray:
        """Return the durations of one step."""
        return self._padded(self._durations[position])

    def step_features(self, position: int) -> FloatArray | None:
        """Return what is known of their work, with one more axis."""
        features = self._features[position]
        return None if features is None else self._padded(features)

    def _padded(self, values: FloatArray) -> FloatArray:
        """Return values with as many items as the step that has most."""
        absent = self.shape[2] - values.shape[4]
        return np.pad(
            values,
            [(0, absent if axis == 4 else 0) for axis in range(values.ndim)],
            constant_values=np.nan,
        )
