"""The run list: which run?"""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from ..plain import units
from ..runs.run_entry import RunEntry
from ..view.addresses import page_address
from ..view.state import ViewState
from .shell import empty, plain_page

POLL_MS = 1000
"""How often the list asks for the runs that were not analysed yet."""
IDLE_POLL_MS = 20_000
"""How often it asks whether runs came, changed or went: that looks at every file of all runs."""

_SEVERITY_CLASSES = {
    "ms-cell-critical": "params.value === 'critical'",
    "ms-cell-warning": "params.value === 'warning'",
    "ms-cell-quiet": "params.value === 'none' || params.value === 'info'",
}
_UNKNOWN_CLASS = {"ms-cell-quiet": "params.value === null"}


def _shown_as(words: str) -> dict[str, Any]:
    """Return what lets a column of numbers sort by them, and shows and finds their words."""
    return {
        "valueFormatter": {"function": f"params.data.{words}"},
        "getQuickFilterText": {"function": f"params.data.{words}"},
    }


_COLUMNS = [
    {
        "field": "run",
        "headerName": "Run",
        "cellRenderer": "markdown",
        "flex": 2,
        "minWidth": 150,
        "tooltipField": "id",
        # Its Markdown holds the words of an address.
        "getQuickFilterText": {"function": "params.data.id"},
    },
    # What is wrong stands before what is only good to know: a narrow window cuts the latter.
    {
        "field": "severity",
        "headerName": "Severity",
        "width": 115,
        "cellClassRules": _SEVERITY_CLASSES,
        "comparator": {"function": "bySeverity"},
    },
    {
        "field": "finding",
        "headerName": "Top finding",
        "cellRenderer": "markdown",
        "getQuickFilterText": {"function": "params.data.finding_text"},
        "flex": 4,
        "minWidth": 300,
        "wrapText": True,
        "autoHeight": True,
        "cellClass": "ms-cell-words",
    },
    {
        "field": "step_time_ns",
        "headerName": "Step time",
        "width": 100,
        "type": "rightAligned",
        **_shown_as("step_time"),
    },
    {
        "field": "mfu",
        "headerName": "MFU",
        "width": 100,
        "type": "rightAligned",
        "tooltipField": "mfu_note",
        "cellClassRules": _UNKNOWN_CLASS,
        **_shown_as("mfu_text"),
    },
    {"field": "layout", "headerName": "Layout", "width": 170, "tooltipField": "layout"},
    {"field": "when", "headerName": "Last written (UTC)", "width": 185, "sort": "desc"},
]

_GRID_THEME = """themeQuartz.withParams({
    accentColor: 'var(--blue)', fontSize: 13, headerHeight: 38, rowHeight: 42, fontFamily: 'inherit',
    backgroundColor: 'var(--card)', foregroundColor: 'var(--ink)', borderColor: 'var(--line)',
    headerBackgroundColor: 'var(--soft)', browserColorScheme: 'inherit'
})"""

_GRID_OPTIONS = {
    "theme": {"function": _GRID_THEME},
    "domLayout": "autoHeight",
    "tooltipShowDelay": 300,
    "enableCellTextSelection": True,
    # A row is as high as the words of its finding, also where these are out of sight; and rows
    # that glide to their places leave gaps behind while heights settle.
    "suppressColumnVirtualisation": True,
    "animateRows": False,
    "quickFilterMatcher": {"function": "matchesWords"},
}

_ROW_CLASSES = {
    "ms-row-unreadable": "params.data.severity === 'unreadable'",
    "ms-row-pending": "params.data.severity === 'analysing'",
}


def layout(entries: list[RunEntry], folder: str) -> Component:
    """Return the page of all runs."""
    if not entries:
        return plain_page(
            [
                html.H1("Runs", className="ms-title"),
                empty(
                    "This folder has no runs yet",
                    f"Record one into {folder} with: meshscope run -- torchrun … train.py",
                ),
                dcc.Interval(id="runs-wait", interval=IDLE_POLL_MS),
            ]
        )
    return plain_page(
        [
            html.Div(
                [
                    html.H1("Runs", className="ms-title"),
                    html.P(summary(entries), id="runs-summary", className="ms-lead"),
                ],
                className="ms-title-row",
            ),
            dmc.TextInput(
                id="runs-filter",
                placeholder="Filter: words, or rank 5",
                size="xs",
                className="ms-filter",
                **{"aria-label": "filter the runs"},
            ),
            dag.AgGrid(
                id="runs-grid",
                rowData=rows(entries),
                columnDefs=_COLUMNS,
                defaultColDef={"sortable": True, "resizable": True},
                dashGridOptions=_GRID_OPTIONS,
                rowClassRules=_ROW_CLASSES,
                eventListeners={"cellKeyDown": ["openOnEnter(params)"]},
                getRowId="params.data.id",
                className="ms-grid",
                style={"height": None},
            ),
            dcc.Interval(id="runs-poll", interval=poll_ms(entries)),
        ]
    )


def poll_ms(entries: list[RunEntry]) -> int:
    """Return when the list asks again: soon while a run still waits to be analysed."""
    return POLL_MS if any(entry.state == "pending" for entry in entries) else IDLE_POLL_MS


def summary(entries: list[RunEntry]) -> str:
    """Return how many runs there are, and how many cannot be read."""
    unreadable = sum(entry.state == "unreadable" for entry in entries)
    text = "1 run" if len(entries) == 1 else f"{len(entries)} runs"
    return text + (f", {unreadable} of them unreadable" if unreadable else "")


def rows(entries: list[RunEntry]) -> list[dict[str, Any]]:
    """Return the grid rows: numbers beside their words; a run that cannot be read shows its error."""
    return [_row(entry) for entry in entries]


def _row(entry: RunEntry) -> dict[str, Any]:
    shared = {"id": entry.run_id, "when": units.clock_time(entry.modified_ns)}
    if entry.state == "unreadable":
        return {
            **shared,
            "run": _literal(entry.run_id),
            "severity": "unreadable",
            **_words(entry.error),
        }
    link = f"[{entry.run_id}]({page_address(entry.run_id, 'overview', ViewState())})"
    if entry.state == "pending" and not entry.top_finding:
        return {
            **shared,
            "run": link,
            "severity": "analysing",
            **_words("waits for its first analysis"),
        }
    return {
        **shared,
        "run": link,
        "layout": entry.layout,
        "step_time_ns": entry.step_time_ns,
        "step_time": units.duration(entry.step_time_ns),
        "mfu": entry.mfu,
        "mfu_text": units.percent(entry.mfu),
        "mfu_note": entry.mfu_unknown_because,
        "severity": entry.severity or "none",
        **_words(
            entry.top_finding or "nothing to report",
            entry.run_id,
            "summary" if entry.is_summary else "findings",
        ),
    }


def _words(text: str, run_id: str | None = None, page: str = "findings") -> dict[str, str]:
    """Return what is said of a run, leading to the page that has more where it has some."""
    shown = _literal(text)
    if run_id is not None:
        shown = f"[{shown}]({page_address(run_id, page, ViewState())})"
    return {"finding": shown, "finding_text": text}


def _literal(name: str) -> str:
    """Return a file name that Markdown shows as it is."""
    return "".join(
        letter if letter.isalnum() or letter == " " else f"&#{ord(letter)};" for letter in name
    )
