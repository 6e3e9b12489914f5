"""Work of ranks whose steps are late by chance: skewed noise of several shapes, of ranks, hosts and the job.

Each draw is ``(ranks, steps)``: by how many mean steps a step is longer. No rank has more of it than another.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshscope.analyze.tables.arrays import FloatArray

RANKS_OF_HOST = 4
Shape = Callable[[np.random.Generator, tuple[int, ...]], FloatArray]

SHAPES: dict[str, Shape] = {
    "lognormal": lambda draw, size: np.expm1(0.3 * draw.standard_normal(size)),
    "heavy lognormal": lambda draw, size: 0.02 * np.exp(1.5 * draw.standard_normal(size)),
    "Pareto 1.5": lambda draw, size: 0.02 * draw.pareto(1.5, size),
    "Pareto 1.1": lambda draw, size: 0.01 * draw.pareto(1.1, size),
    "exponential": lambda draw, size: 0.1 * draw.exponential(size=size),
    "stalls in 1 of 10": lambda draw, size: _stalls(draw, size, 0.1),
    "stalls in 1 of 100": lambda draw, size: _stalls(draw, size, 0.01),
}
"""Of one step."""


def _stalls(draw: np.random.Generator, size: tuple[int, ...], often: float) -> FloatArray:
    return np.asarray((draw.random(size) < often) * draw.exponential(0.5, size))


def _of_one(shape: Shape) -> Shape:
    """Return noise of exactly one rank in each step, any of them."""

    def drawn(draw: np.random.Generator, size: tuple[int, ...]) -> FloatArray:
        ranks, steps = size
        late = np.zeros(size)
        late[draw.integers(ranks, size=steps), np.arange(steps)] = np.abs(shape(draw, (steps,)))
        return late

    return drawn


UNITS: dict[str, Callable[[Shape], Shape]] = {
    "rank": lambda shape: shape,
    "host": lambda shape: (
        lambda draw, size: np.repeat(
            shape(draw, (-(-size[0] // RANKS_OF_HOST), size[1])), RANKS_OF_HOST, axis=0
        )[: size[0]]
    ),
    "step": lambda shape: lambda draw, size: np.broadcast_to(shape(draw, (1, size[1])), size),
    "one rank a step": _of_one,
}
"""Who is late together."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Noise of a kind."""

    shape: str
    unit: str

    def __str__(self) -> str:
        """Return what a table calls it."""
        return (
            f"{self.shape}, per {self.unit}"
            if self.unit != "one rank a step"
            else f"{self.shape}, {self.unit}"
        )

    def steps(self, seed: int, ranks: int, steps: int) -> FloatArray:
        """Return the length of each step ``(ranks, steps)``, 1 being usual, with 0.5 % that is normal."""
        draw = np.random.default_rng([seed, len(self.shape), len(self.unit)])
        late = UNITS[self.unit](SHAPES[self.shape])(draw, (ranks, steps))
        return np.asarray(
            np.maximum(1.0 + late + 0.005 * draw.standard_normal((ranks, steps)), 0.05)
        )


KINDS = [Noise(shape=shape, unit=unit) for shape in SHAPES for unit in UNITS]
