"""A run too large to be read for a page: what its summaries say, and when these stand for the run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshscope.analyze.findings.rules.grading import severity
from meshscope.analyze.output.text.summaries import claim_of, none_slow
from meshscope.analyze.scale.blocks import Blocks
from meshscope.analyze.scale.first_answer import outlook_of
from meshscope.analyze.scale.slow_ranks import FirstAnswer
from meshscope.analyze.scale.store import FOLDER, Summaries, read_summaries
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import MANIFEST_NAME

from .mesh import FloatMatrix, RankStepMatrix

LARGE_RECORDS = 2_000_000
"""Records from which a run is shown from its summaries first: an account of so many takes half a minute or more."""


@dataclass(frozen=True, slots=True)
class SummarisedRun:
    """What the summaries of a large run say."""

    run_id: str
    made: Summaries
    answer: FirstAnswer
    blocks: Blocks

    @property
    def records(self) -> int:
        """Return how many records the finished steps of all ranks have."""
        return int(self.blocks.steps["records"].to_numpy().sum())

    def nbytes(self) -> int:
        """Return about how much memory it holds."""
        return int(self.blocks.steps.nbytes + self.blocks.blocks.nbytes)

    @property
    def layout(self) -> str:
        """Return the mesh as people write it."""
        layout = self.made.outline.layout
        if layout is None:
            return f"{self.answer.ranks:,} ranks, mesh not known"
        return " ".join(f"{axis.upper()}{getattr(layout, axis)}" for axis in ("tp", "pp", "dp"))

    @property
    def claim(self) -> str:
        """Return the first answer in a sentence."""
        slow = self.answer.slow
        return str(claim_of(slow[0]) if slow else none_slow(self.answer))

    @property
    def severity(self) -> str:
        """Return how bad the most costly slow rank is; empty if none is slow."""
        if not self.answer.slow:
            return ""
        return str(severity(cost_frac(self.answer)))

    def trend(self) -> list[dict[str, float | int | None]]:
        """Return one row a step: the longest of any rank. MFU of a step is not in summaries."""
        steps = self.blocks.steps
        pairs = zip(steps["step"].to_pylist(), steps["step_s"].to_pylist(), strict=True)
        return [{"step": step, "step_ns": time_s * 1e9, "mfu": None} for step, time_s in pairs]

    def own_work(self) -> RankStepMatrix:
        """Return own work by rank and block of steps, the median of the stage as 1."""
        cells = self._cells("own_s")
        layout = self.made.outline.layout
        stage = np.zeros(len(cells.values), dtype=np.int64)
        if layout is not None:
            stage = np.array([layout.coordinates(rank)["pp"] for rank in cells.ranks])
        values = np.empty_like(cells.values)
        for one in np.unique(stage):
            own = cells.values[stage == one]
            with np.errstate(invalid="ignore", divide="ignore"):
                values[stage == one] = own / _median(own)
        words = "own work, median rank of the same stage = 1"
        return _matrix(cells.ranks, cells.steps, values, 1.0, words)

    def exposed(self) -> RankStepMatrix:
        """Return waiting and transfer that nothing overlapped, as a share of the time."""
        cells, wall = self._cells("exposed_s"), self._cells("wall_s").values
        with np.errstate(invalid="ignore", divide="ignore"):
            values = cells.values / wall
        words = "waiting and exposed transfer, share of the step"
        return _matrix(cells.ranks, cells.steps, values, None, words)

    @property
    def steps_each(self) -> int:
        """Return how many steps a block has."""
        first, last = (self.blocks.blocks[name].to_numpy() for name in ("first_step", "last_step"))
        return int((last - first).max(initial=0)) + 1

    def _cells(self, name: str) -> RankStepMatrix:
        table = self.blocks.blocks
        ranks, row = np.unique(table["rank"].to_numpy(), return_inverse=True)
        steps, column = np.unique(table["first_step"].to_numpy(), return_inverse=True)
        values = np.full((len(ranks), len(steps)), np.nan)
        values[row, column] = table[name].to_numpy()
        return _matrix(ranks.tolist(), steps.tolist(), values, None, name)


def cost_frac(answer: FirstAnswer) -> float | None:
    """Return what the most costly slow rank costs, as a share of the mean step; None without one."""
    if not answer.slow:
        return None
    price = answer.slow[0].price
    return (price.most_ns if price.return_ns is None else price.return_ns) / answer.step_ns


def summarised(path: Path, recorded_ns: int) -> SummarisedRun | None:
    """Return what the summaries of a run say; None without them, of a small run, or where the run is newer.

    Args:
        path: The run directory.
        recorded_ns: When it was written to last, ns since the epoch.
    """
    with suppress(MeshscopeError, OSError):
        if (path / FOLDER / MANIFEST_NAME).stat().st_mtime_ns < recorded_ns:
            return None
        made = read_summaries(path)
        found = SummarisedRun(path.name, made, *outlook_of(made))
        return found if found.records >= LARGE_RECORDS else None
    return None


def _matrix(
    ranks: list[int] | tuple[int, ...],
    steps: list[int] | tuple[int, ...],
    values: FloatMatrix,
    middle: float | None,
    meaning: str,
) -> RankStepMatrix:
    return RankStepMatrix(
        ranks=tuple(ranks), steps=tuple(steps), values=values, middle=middle, meaning=meaning
    )


def _median(own: FloatMatrix) -> FloatMatrix:
    """Return the median over ranks of what is known, by block; NaN where nothing is."""
    known = np.isfinite(own).any(axis=0)
    median = np.full(own.shape[1], np.nan)
    median[known] = np.nanmedian(own[:, known], axis=0)
    return median
