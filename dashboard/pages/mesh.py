"""The mesh of a run: who is slow, who waits, and where do they sit?"""

from __future__ import annotations

import dash_mantine_components as dmc
import numpy as np
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.wording.words import counted

from ..figures.heatmap import rank_step_blocks, rank_step_heatmap
from ..figures.mesh_grid import mesh_heatmap, mesh_rows_each
from ..plain import units
from ..runs.loaded_run import LoadedRun
from ..runs.mesh import RankStepMatrix, mesh_facets, rank_step_matrix, slowest_rank
from ..view.state import METRICS, ViewState
from .hosts import hosts_cards
from .shell import card, chart, empty, table

_METRIC_WORDS = {
    "slowdown": "Compute against peers",
    "own": "Own time against peers",
    "compute": "Compute against all",
    "wait": "Waiting",
}
_TABLE_ROWS = 64
_NO_GAIN = "\N{EN DASH}"


def layout(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the mesh page."""
    controls = html.Div(
        [
            html.H1("Ranks and mesh", className="ms-title"),
            html.Span(className="ms-spring"),
            dmc.SegmentedControl(
                id="mesh-metric",
                data=[{"value": name, "label": _METRIC_WORDS[name]} for name in METRICS],
                value=state.metric,
                size="xs",
            ),
        ],
        className="ms-title-row ms-controls",
    )
    return [
        dcc.Location(id="mesh-url", refresh=False),
        # The query that the control shows, which tells a change by the page from one by hand.
        dcc.Store(id="mesh-drawn", data=state.query()),
        controls,
        html.Div(rank_step(run, state), id="mesh-content"),
        _grid(run),
        *hosts_cards(run),
        _table(run),
    ]


def rank_step(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the rank x step heatmap of the metric in the query."""
    matrix = rank_step_matrix(run.diagnosis, state.metric)
    title = "Every rank in every step"
    if not np.isfinite(matrix.values).any():
        return [
            card(
                title, [empty("Nothing to compare", f"No rank has a value for: {matrix.meaning}.")]
            ),
        ]
    figure = rank_step_heatmap(matrix, state.rank, state.step)
    blocks = rank_step_blocks(matrix)
    note = f"Colour: {matrix.meaning}.{_sharing(blocks.rows_each, 'rank', 'row')}"
    note += _sharing(blocks.columns_each, "step", "column")
    return [
        card(
            title,
            [chart(figure, _caption(matrix) + _marked(matrix, state), "rank-step-graph")],
            note=note,
        ),
    ]


def _sharing(count: int, what: str, line: str) -> str:
    """Say that ranks or steps share a line of a figure, nothing where each has its own."""
    return f" A {line} shows the highest value of {count} {what}s." if count > 1 else ""


def _caption(matrix: RankStepMatrix) -> str:
    row, column = np.unravel_index(int(np.nanargmax(matrix.values)), matrix.values.shape)
    peak = float(matrix.values[row, column])
    worst = np.nanmedian(matrix.values, axis=1)
    rank = matrix.ranks[int(np.nanargmax(worst))]
    value, typical = (
        (units.percent(peak), units.percent(float(np.nanmax(worst))))
        if matrix.middle is None
        else (f"{peak:.2f} x", f"{float(np.nanmax(worst)):.2f} x")
    )
    highest = (
        f"Highest: {value} on rank {matrix.ranks[int(row)]} in step {matrix.steps[int(column)]}."
    )
    if not matrix.compares_ranks:
        return highest
    return f"{highest} Highest median over steps: {typical} on rank {rank}."


def _marked(matrix: RankStepMatrix, state: ViewState) -> str:
    """Return what the lines of the figure mark, and what of the selection is not in it."""
    chosen = (("rank", state.rank, matrix.ranks), ("step", state.step, matrix.steps))
    selected = [
        (f"{what} {number}", number in known)
        for what, number, known in chosen
        if number is not None
    ]
    if not selected:
        return " Click a cell to select its rank and step: the timeline then shows them."
    inside = " and ".join(words for words, is_in in selected if is_in)
    missing = [
        f" {words.capitalize()} is not in this figure." for words, is_in in selected if not is_in
    ]
    return (f" Selected: {inside}." if inside else "") + "".join(missing)


def _grid(run: LoadedRun) -> Component:
    facets = mesh_facets(run.diagnosis)
    title = "Slowdown by place in the mesh"
    if not facets:
        why = "The layout of the job is not in the capture, so ranks have no place to be drawn at."
        return card(title, [empty("The mesh is not known", why)])
    slowest = slowest_rank(run.diagnosis)
    if slowest is None:
        return card(
            title, [empty("No slowdown is known", "No rank could be compared with a peer.")]
        )
    caption = (
        f"Slowest is rank {slowest.rank} (pp{slowest.pp}, dp{slowest.dp}, tp{slowest.tp}): "
        f"{slowest.slowdown:.2f} x its peers."
    )
    note = "Rows are data ranks, columns pipeline ranks, one panel for each tensor rank."
    note += _sharing(mesh_rows_each(facets), "data rank", "row")
    return card(title, [chart(mesh_heatmap(facets), caption, "mesh-graph")], note=note)


def _table(run: LoadedRun) -> Component:
    stragglers = run.diagnosis.stragglers
    steps = max(run.diagnosis.ledger["step"].nunique(), 1)
    rows = [
        [
            f"rank {int(row['rank'])}",
            _ratio(row["slowdown"]),
            _gain(row["removal_gain_frac"], are_known=run.diagnosis.waiting is not None),
            units.duration(_known(row["excess_ns"])),
            *(
                units.duration(None if time is None else time / steps)
                for time in (_known(row["wait_ns"]), _known(row["wait_caused_ns"]))
            ),
            f"{int(row['arrived_last'])} of {int(row['collectives'])}",
        ]
        for row in stragglers.head(_TABLE_ROWS).to_dict("records")
    ]
    if not rows:
        return card(
            "Ranks", [empty("No ranks", "The capture contains no rank that could be analysed.")]
        )
    if stragglers["slowdown"].isna().all() and not stragglers["collectives"].any():
        why = "No rank has a peer, and no blocking collective was recorded."
        return card("Ranks", [empty("Ranks cannot be compared", why)])
    columns = [
        "Rank",
        "Slowdown",
        "Removal gain",
        "Excess a step",
        "Waited a step",
        "Waiting caused a step",
        "Was last",
    ]
    if run.diagnosis.ledger.empty:
        return card("Ranks", [empty("No steps were recorded", "Ranks are compared by steps.")])
    note = f"Waits and arrivals over {counted(steps, 'step')}, blocking collectives only."
    if run.diagnosis.waiting is not None:
        note += f" A rank that causes no loss has no removal gain ({_NO_GAIN})."
    if len(stragglers) > _TABLE_ROWS:
        note += f" The first {_TABLE_ROWS} of {len(stragglers)} ranks; the JSON has all."
    return card("Ranks", [table(columns, rows)], note=note)


def _gain(value: object, *, are_known: bool) -> str:
    """Return the removal gain of a rank; without one it is no cause, where the causes are known."""
    gain = _known(value)
    is_cause = gain is not None and np.isfinite(gain)
    return _NO_GAIN if are_known and not is_cause else units.percent(gain)


def _known(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _ratio(value: object) -> str:
    number = _known(value)
    return units.UNKNOWN if number is None or not np.isfinite(number) else f"{number:.2f} x"
