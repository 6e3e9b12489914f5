"""The picture of a finding: the ranks that it names beside their peers, in the step that shows it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...tables.results import Diagnosis, Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from ...wording.quantities import duration, percent
from ..document import Figure, Table
from ..timeline.categories import COLOURS, LABELS, Category
from ..timeline.raster import rasterize
from ..timeline.slices import StepSlices, of_ranks, step_slices, steps_of
from ..timeline.unfinished import last_step
from .svg import WIDTH, box, hatch, legend, line, picture, text

_MOST_ROWS = 16
_MOST_NAMED = 8
_PIXELS = 600
"""Columns of a row: a piece that is narrower shows where it takes most of one."""
_LABEL_PX = 190
_ROW_PX = 22
_HATCHED = (Category.COMM_TP, Category.COMM_PP, Category.COMM_DP, Category.COMM_OTHER)
"""Communication that nothing hides, waiting included: hatched, as it is nobody's work."""


class Evidence:
    """Draws findings; the pieces of a step are computed once."""

    def __init__(self, trace: Trace, result: Diagnosis) -> None:
        """Look at nothing yet."""
        self._trace = trace
        self._lengths = result.ledger.groupby("step")["step_ns"].max()
        self._steps = set(steps_of(trace))
        self._drawn: dict[int, StepSlices] = {}
        self._slow = result.stragglers.set_index("rank")["slowdown"]

    def figure(self, finding: Finding, number: int) -> Figure | None:
        """Return the picture of a finding; None where the capture holds nothing to draw.

        Args:
            finding: What is shown.
            number: Its place in the report, for names that are one of a kind.
        """
        named = self._named(finding)
        step = self._step(finding, named)
        if step is None:
            return None
        drawn = self._slices(step)
        rows = self._rows(drawn, named)
        shown = of_ranks(drawn, rows, named)
        if shown.slices.empty or shown.length_ns <= 0:
            return None
        caption = _caption(shown, named[:_MOST_NAMED])
        return Figure(_drawing(shown, str(caption), f"f{number}"), caption, _shares(shown))

    def _slices(self, step: int) -> StepSlices:
        if step not in self._drawn:
            self._drawn[step] = step_slices(self._trace, step)
        return self._drawn[step]

    def _named(self, finding: Finding) -> list[int]:
        """Return the ranks that a finding is about, as far as they are in the capture."""
        where, known = finding.where, set(self._trace.ranks)
        ranks = [where["rank"]] if "rank" in where else list(where.get("ranks", ()))
        if not ranks and "stage" in where and self._trace.layout is not None:
            layout = self._trace.layout
            own = [rank for rank in known if rank < layout.world_size]
            ranks = [rank for rank in own if layout.coordinates(rank)["pp"] == where["stage"]]
        if not ranks and "host" in where:
            ranks = [rank for rank in known if self._trace.host_of(rank) == where["host"]]
        return sorted(rank for rank in ranks if rank in known)

    def _step(self, finding: Finding, named: Sequence[int]) -> int | None:
        """Return the step of median length of those that the finding names, or of all."""
        if finding.is_end:
            broken = last_step(self._trace, named)
            return broken if broken is not None else max(self._steps, default=None)
        lengths = self._lengths[self._lengths.index.isin(self._steps)]
        if lengths.empty:
            return min(self._steps, default=None)
        own = lengths[lengths.index.isin(finding.steps)]
        if own.empty and (span := finding.where.get("steps")):
            own = lengths[(lengths.index >= span[0]) & (lengths.index <= span[-1])]
        chosen = (own if len(own) else lengths).sort_values(kind="stable")
        return int(chosen.index[(len(chosen) - 1) // 2])

    def _rows(self, drawn: StepSlices, named: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks to draw: the named ones, the slowest first, and peers; in the order of the mesh."""
        by_slowness = sorted(named, key=lambda rank: -float(self._slow.get(rank, 0.0) or 0.0))
        chosen = by_slowness[:_MOST_NAMED]
        peers = [rank for rank in self._peers(chosen[:1]) if rank not in named]
        others = [rank for rank in drawn.ranks if rank not in {*chosen, *peers, *named}]
        room = _MOST_ROWS - len(chosen)
        picked = _spread(peers, room)
        picked += _spread(others, room - len(picked))
        keep = {*chosen, *picked}
        return tuple(rank for rank in drawn.ranks if rank in keep)

    def _peers(self, ranks: Sequence[int]) -> list[int]:
        """Return the ranks of the groups of one rank: they differ in one axis of the mesh."""
        layout = self._trace.layout
        if layout is None or not ranks or ranks[0] >= layout.world_size:
            return []
        own = layout.coordinates(ranks[0])
        inside = [rank for rank in self._trace.ranks if rank < layout.world_size]
        return [
            rank
            for rank in inside
            if sum(own[axis] != at for axis, at in layout.coordinates(rank).items()) == 1
        ]


def _caption(shown: StepSlices, named: Sequence[int]) -> Message:
    """Return what the picture shows: how long the step is, which ranks are drawn."""
    who = message("report_page.marked", ranks=named) if named else message("report_page.some")
    if shown.is_broken_off:
        return message("report_page.evidence_of_end", who=who, step=shown.step)
    length_ns = shown.longest_ns or shown.length_ns
    return message("report_page.evidence", who=who, step=shown.step, time_ns=length_ns)


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    """Return at most so many of some ranks, evenly spread."""
    if len(ranks) <= most:
        return list(ranks)
    places = np.unique(np.linspace(0, len(ranks) - 1, max(most, 0)).astype(int))
    return [ranks[place] for place in places.tolist()]


def _drawing(shown: StepSlices, label: str, prefix: str) -> str:
    rows = len(shown.ranks)
    pixels = rasterize(shown.slices, rows=rows, window_ns=(0, shown.length_ns), width=_PIXELS)
    present = [Category(int(value)) for value in np.unique(pixels)]
    fills = {one: _fill(one, prefix) for one in present if one is not Category.IDLE}
    patterns = "".join(
        hatch(f"{prefix}-{int(one)}", COLOURS[one]) for one in present if one in _HATCHED
    )
    bottom = rows * _ROW_PX
    parts = [f"<defs>{patterns}</defs>"]
    for row, words in enumerate(shown.labels):
        parts.append(text(_LABEL_PX - 8, row * _ROW_PX + 15, words[:32], anchor="end"))
        parts.append(box(_LABEL_PX, row * _ROW_PX + 2, WIDTH - _LABEL_PX, _ROW_PX - 4, "idle"))
    parts += [_runs(pixels, one, fill) for one, fill in fills.items()]
    for place in range(5):
        x = _LABEL_PX + (WIDTH - _LABEL_PX) * place / 4
        anchor = "end" if place == 4 else "middle" if place else "start"
        parts.append(line(x, bottom, x, bottom + 4))
        words = duration(shown.length_ns * place / 4)
        parts.append(text(x, bottom + 17, words, anchor=anchor, kind="muted"))
    entries = [(fill, _meaning(one)) for one, fill in fills.items()]
    legend_parts, height = legend(bottom + 28, [*entries, ("idle", LABELS[Category.IDLE])])
    return picture(height, label, [*parts, *legend_parts])


def _fill(category: Category, prefix: str) -> str:
    return f"url(#{prefix}-{int(category)})" if category in _HATCHED else COLOURS[category]


def _meaning(category: Category) -> str:
    words = LABELS[category]
    return f"{words}: waiting or wire" if category in _HATCHED else words


def _runs(pixels: npt.NDArray[np.uint8], category: Category, fill: str) -> str:
    """Return all stretches of one category as one path."""
    own = np.pad(pixels == int(category), ((0, 0), (1, 1)))
    edges = np.diff(own.astype(np.int8), axis=1)
    row, begin = np.nonzero(edges == 1)
    _, end = np.nonzero(edges == -1)
    scale = (WIDTH - _LABEL_PX) / _PIXELS
    height = _ROW_PX - 4
    moves = "".join(
        f"M{_LABEL_PX + left * scale:.1f} {top * _ROW_PX + 2}h{(right - left) * scale:.1f}v{height}h-{(right - left) * scale:.1f}z"
        for top, left, right in zip(row.tolist(), begin.tolist(), end.tolist(), strict=True)
    )
    return f'<path d="{moves}" fill="{fill}"/>'


def _shares(shown: StepSlices) -> Table:
    """Return how much of the step each drawn rank shows of each category."""
    slices = shown.slices.assign(ns=shown.slices["end_ns"] - shown.slices["start_ns"])
    table = slices.pivot_table(
        index="row", columns="category", values="ns", aggfunc="sum", fill_value=0
    )
    names = [LABELS[Category(int(value))] for value in table.columns]
    rows = [
        (shown.labels[int(row)], *(percent(ns / shown.length_ns) for ns in values))
        for row, values in zip(table.index, table.to_numpy(), strict=True)
    ]
    return Table(("rank", *names), rows)
