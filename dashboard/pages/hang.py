"""A job that hangs or died: who stands in which operation, who is missing, who ended first?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.wording.words import capitalised, rank_words, sentence

from ..answers.views import hang
from ..plain import units
from ..runs.loaded_run import LoadedRun
from ..view.addresses import csv_address, page_address
from ..view.state import ViewState
from .findings import severity_badge
from .shell import card, empty, paper, table

TITLE = "Which rank hangs, in what, and who ended first?"
_MOST_ROWS, _MOST_OPERATIONS = 64, 24
_NONE = "\N{EN DASH}"
_RECORD = (
    "Start the job with: meshscope run -- COMMAND. Or let PyTorch write dumps of its flight recorder "
    "(TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1), and put their folder among the runs."
)
_OPEN = (
    "No operation is known to have been open on some ranks only. Communication is recorded at the "
    "level collectives and above."
)

Row = Mapping[str, Any]


def layout(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the page of hangs and deaths."""
    found = hang(run)
    content: list[Component] = [
        html.H1(TITLE, className="ms-title"),
    ]
    if found["findings"]:
        content += [_finding(run, one, state) for one in found["findings"]]
    else:
        content.append(_no_hang(found))
    if found["ranks"]:
        content += [
            _ranks(run, found["ranks"], state),
            _operations(run, found["operations"], state),
        ]
    return content


def _no_hang(found: Row) -> Component:
    """Return the one sentence that stands for a run without a hang."""
    what = sentence(found["claim"])
    return html.Div(
        empty(what, _RECORD if found["state"] == "unknown" else ""), className="ms-card"
    )


def _finding(run: LoadedRun, finding: Row, state: ViewState) -> Component:
    evidence = html.Ul([html.Li(fact) for fact in finding["evidence"]], className="ms-evidence")
    step = run.stood_still_in
    place = state if step is None or step == state.step else state.at_step(step)
    link = dcc.Link(
        "See the timeline", href=page_address(run.run_id, "timeline", place), className="ms-link"
    )
    head = [
        severity_badge(finding["severity"]),
        html.Span(str(finding["kind"]).replace("_", " "), className="ms-kind"),
        html.Span(
            f"confidence {units.percent(finding['confidence'], places=0)}", className="ms-place"
        ),
    ]
    body = [
        html.Div([html.H3("Evidence"), evidence]),
        html.Div(
            [
                html.H3("Remedy"),
                html.P(finding["remedy"]),
                html.Div([link], className="ms-links"),
            ]
        ),
    ]
    return paper(
        [
            html.Div(head, className="ms-finding-head"),
            html.H2(finding["claim"], className="ms-claim"),
            html.Div(body, className="ms-finding-body"),
        ],
        f"ms-finding ms-{finding['severity']}",
    )


def _ranks(run: LoadedRun, ranks: Sequence[Row], state: ViewState) -> Component:
    shown = ranks[:_MOST_ROWS]
    rows = [
        [
            _who(row),
            _place(row),
            _stands_in(row),
            _code(row),
            units.duration(row["waited_ns"]) if row["waited_ns"] is not None else _NONE,
            units.duration(row["silent_ns"]),
            _ended(row),
        ]
        for row in shown
    ]
    columns = [
        "Rank",
        "Place",
        "In which operation",
        "File and line",
        "Waited at least",
        "Silent at the end",
        "Process",
    ]
    note = "Ranks named by findings come first. Silent: from a rank's last record to the last record of any rank."
    if len(ranks) > len(shown):
        note += f" {len(shown)} of {len(ranks)} ranks; JSON and CSV have all."
    culprits = sum(bool(row["is_culprit"]) for row in shown)
    return card(
        "Who was where at the end",
        [table(columns, rows, numeric_from=4, marked=culprits)],
        note=note,
        csv=csv_address(run.run_id, "hang", "ranks", state),
    )


def _who(row: Row) -> Component:
    named = html.Strong(f"rank {row['rank']}")
    colour = "red" if row["is_culprit"] else "gray"
    label = dmc.Badge(row["role"], color=colour, variant="light", radius="sm")
    return html.Div([named, label], className="ms-lines")


def _place(row: Row) -> str:
    place = " ".join(f"{axis}{row[axis]}" for axis in ("pp", "dp", "tp") if row[axis] >= 0)
    return ", ".join(filter(None, (place, row["host"]))) or _NONE


def _stands_in(row: Row) -> str:
    """Return the operation that a rank waits in; of one that does not wait what it issued last."""
    if row["operation"] is not None:
        return str(row["operation"])
    if not row["last_issued"]:
        return "none recorded"
    found = "not recorded; last known" if row["is_unknown"] else "none; last"
    return f"{found} {row['last_issued']}"


def _code(row: Row) -> Component:
    """Return where in the program a rank stood, else where it issued what it waits in."""
    lines = [row["function"], *row["callers"]] if row["function"] else row["places"]
    if not lines:
        return html.Span("not recorded", className="ms-place")
    return html.Div([html.Div(line, className="ms-code") for line in lines])


def _ended(row: Row) -> str:
    by, after_ns = row["ended_by"], row["ended_after_ns"]
    if by is None and after_ns is None:
        return units.UNKNOWN
    when = (
        ""
        if after_ns is None
        else "first"
        if after_ns == 0
        else f"{units.duration(after_ns)} later"
    )
    how = "" if by in (None, "unknown") else f"ended {by}" if by == "in order" else str(by)
    return ", ".join(filter(None, (how, when))) or units.UNKNOWN


def _operations(run: LoadedRun, operations: Sequence[Row], state: ViewState) -> Component:
    title = "Open operations"
    if not operations:
        return card(title, [empty("No open operation is on record", _OPEN)])
    rows = [
        [
            html.Span(row["operation"]),
            capitalised(rank_words(row["waiting"])),
            _missing(row),
            html.Div([html.Div(place, className="ms-code") for place in row["places"]] or _NONE),
            units.duration(row["before_last_record_ns"]),
            units.duration(row["waited_ns"]),
        ]
        for row in sorted(operations, key=lambda row: not row["missing"])[:_MOST_OPERATIONS]
    ]
    columns = [
        "Operation",
        "Who waits",
        "Who is missing",
        "Call site",
        "Issued before the last record",
        "Waited at least",
    ]
    note = "Operations with a missing member come first, then by age. A missing rank may wait elsewhere: follow the chain to a rank that waits for nobody."
    if len(operations) > len(rows):
        note += f" {len(rows)} of {len(operations)} operations; JSON and CSV have all."
    return card(
        title,
        [table(columns, rows, numeric_from=4)],
        note=note,
        csv=csv_address(run.run_id, "hang", "operations", state),
    )


def _missing(row: Row) -> str:
    if row["missing"]:
        return capitalised(rank_words(row["missing"]))
    if row["delayed"]:
        return f"{capitalised(rank_words(row['delayed']))}, held by an older operation"
    return "nobody: all issued it"
