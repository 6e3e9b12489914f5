"""Durations of jobs with known slow ranks: seeded, with the nuisances of real machines.

The nuisances follow what a production trace shows: a spread of 2 to 3 % within a
worker, some of it lasting from one microbatch to the next, rare stalls, slow drift of
single ranks and of the whole job, small constant differences between ranks, clocks that
run at different rates; and, if wanted, sequence lengths that make microbatches unequal
by a third, with a last stage that follows them less because of its output head.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout

KINDS = ("forward", "backward")


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A rank that is slower by a factor, from one step to before another."""

    rank: int
    factor: float
    start: int = 0
    stop: int = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Nuisance:
    """What else moves durations."""

    item_cv: float = 0.02
    """Coefficient of variation of one forward or backward."""
    item_correlation: float = 0.2
    """From one item of a rank to its next."""
    stalls: float = 0.001
    """Share of items that take up to twice as long."""
    step_cv: float = 0.003
    """Of whole steps of a rank, with a correlation of 0.5."""
    drift: float = 0.002
    """Amplitude of a slow drift of each rank."""
    common_drift: float = 0.003
    """Amplitude of a slow drift of all ranks together."""
    spread: float = 0.002
    """Standard deviation of constant differences between ranks."""
    clock_ppm: float = 50.0
    """Rates of the clocks."""
    work_cv: float = 0.0
    """Of the work of microbatches, from their sequence lengths."""


@dataclass(frozen=True, kw_only=True)
class SlowRankJob:
    """One seeded job."""

    seed: int
    layout: ParallelLayout
    steps: int
    microbatches: int = 8
    faults: tuple[Fault, ...] = ()
    nuisance: Nuisance = Nuisance()
    tokens: bool = False
    """Whether the tokens of the microbatches are known."""

    def known_work(self) -> np.ndarray | None:
        """Return the tokens [step, rank, kind, microbatch, 1], None where they are unknown."""
        if not self.tokens:
            return None
        work = self.work(np.random.default_rng(self.seed))
        tokens = np.rint(8192 * work)[:, :, None, :, None]
        return np.broadcast_to(tokens, (*work.shape[:2], len(KINDS), self.microbatches, 1))

    def durations(self) -> np.ndarray:
        """Return durations in ns [step, rank, kind, microbatch]."""
        draw = np.random.default_rng(self.seed)
        ranks = self.layout.world_size
        n = self.nuisance
        shape = (self.steps, ranks, len(KINDS), self.microbatches)
        value = self.stage_times(self.work(draw)) * self._noise(draw, shape)
        value *= (1 + n.spread * draw.standard_normal(ranks))[:, None, None]
        value *= (1 + n.clock_ppm * 1e-6 * draw.uniform(-1, 1, ranks))[:, None, None]
        value *= self._steps(draw, ranks)[:, :, None, None]
        for fault in self.faults:
            value[fault.start : fault.stop, fault.rank] *= fault.factor
        return value

    def work(self, draw: np.random.Generator) -> np.ndarray:
        """Return relative work [step, rank, microbatch]; stages and TP ranks share it."""
        sigma = np.sqrt(np.log1p(self.nuisance.work_cv**2))
        replicas = self.layout.dp * self.layout.cp
        drawn = np.exp(
            sigma * draw.standard_normal((self.steps, replicas, self.microbatches)) - sigma**2 / 2
        )
        place = [self.layout.coordinates(rank) for rank in range(self.layout.world_size)]
        return drawn[:, [at["dp"] * self.layout.cp + at["cp"] for at in place]]

    def stage_times(self, work: np.ndarray) -> np.ndarray:
        """Return durations without noise; the last stage has a head of fixed cost."""
        layout = self.layout
        stage = np.array([layout.coordinates(r)["pp"] for r in range(layout.world_size)])
        is_last = (stage == layout.pp - 1) & (layout.pp > 1)
        fixed = np.where(is_last, 4e6, 0.0)[:, None]
        forward = 10e6 * work + fixed
        return np.stack([forward, 2 * forward], axis=2)

    def _noise(self, draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        n = self.nuisance
        flat = draw.standard_t(5, size=(shape[1], shape[0] * shape[2] * shape[3])) / np.sqrt(5 / 3)
        for k in range(1, flat.shape[1]):
            flat[:, k] = n.item_correlation * flat[:, k - 1] + flat[:, k] * np.sqrt(
                1 - n.item_correlation**2
            )
        noise = 1 + n.item_cv * flat.reshape(shape[1], shape[0], shape[2], shape[3])
        stalls = draw.random(noise.shape) < n.stalls
        noise = np.where(stalls, noise * (1 + draw.random(noise.shape)), noise)
        return np.maximum(noise, 0.2).transpose(1, 0, 2, 3)

    def _steps(self, draw: np.random.Generator, ranks: int) -> np.ndarray:
        n, steps = self.nuisance, self.steps
        walk = draw.standard_normal((steps, ranks))
        for k in range(1, steps):
            walk[k] = 0.5 * walk[k - 1] + np.sqrt(0.75) * walk[k]
        time = np.arange(steps)[:, None]
        own = np.sin(2 * np.pi * (time / draw.uniform(60, 200, ranks) + draw.random(ranks)))
        common = np.sin(2 * np.pi * (time / 90 + draw.random()))
        return 1 + n.step_cv * walk + n.drift * own + n.common_drift * common

    def frame(self) -> pd.DataFrame:
        """Return the table that ``detect`` reads."""
        value = self.durations()
        step, rank, kind, item = np.indices(value.shape).reshape(4, -1)
        columns = {
            "rank": rank,
            "step": step,
            "kind": np.array(KINDS)[kind],
            "microbatch": item,
            "dur_ns": value.ravel().astype(np.int64),
        }
        known = self.known_work()
        if known is not None:
            columns["tokens"] = known.ravel()
        return pd.DataFrame(columns)
