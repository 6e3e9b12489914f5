"""The overview of a large run from its summaries: which rank, since when, what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.output.text.summaries import claim_of, facts_of, none_slow, steps_seen
from meshscope.analyze.wording.command_line import command_line
from meshscope.analyze.wording.limits import limit_texts
from meshscope.analyze.wording.words import sentence

from ..figures.heatmap import rank_step_heatmap
from ..figures.trend import trend_figure
from ..plain import units
from ..runs.mesh import RankStepMatrix
from ..runs.summarised_run import SummarisedRun, cost_frac
from ..view.addresses import csv_address, json_address, page_address
from ..view.state import ViewState
from .findings import severity_badge
from .page_list import PAGES
from .shell import card, chart, header, key_numbers, notice

PAGE = "summary"
_MOST_FRAMED = 64
"""Ranks up to which a row is high enough for a frame around it."""


def layout(run: SummarisedRun, state: ViewState) -> Component:
    """Return the page."""
    twin = html.A(
        "JSON", id="json-link", href=json_address(run.run_id, PAGE, state), className="ms-json"
    )
    facts = html.Div(html.Span(run.layout, className="ms-fact"), className="ms-facts-line")
    return html.Div(
        [
            header(run.run_id, [facts, twin]),
            html.Nav(
                html.Div(list(_tabs(run, state)), className="ms-nav-inner ms-tabs"),
                className="ms-nav",
            ),
            html.Main(
                [
                    html.H1("Overview from summaries", className="ms-unseen"),
                    notice(
                        f"From summaries only: {run.made.rows:,} rows, one per rank and step. "
                        f"{run.records:,} records were not read."
                    ),
                    key_numbers(_key_numbers(run)),
                    _answer(run),
                    _trend(run, state),
                    *_heatmaps(run, state),
                    _deeper(run, state),
                ],
                className="ms-main",
            ),
        ]
    )


def _tabs(run: SummarisedRun, state: ViewState) -> Iterator[Component]:
    for name in PAGES:
        page = PAGE if name == "overview" else name
        active = " ms-tab-active" if page == PAGE else ""
        yield dcc.Link(
            name.capitalize(),
            href=page_address(run.run_id, page, state),
            className=f"ms-tab{active}",
            title="" if page == PAGE else "Reads the full records: minutes",
        )


def _key_numbers(run: SummarisedRun) -> list[tuple[str, str, str]]:
    answer = run.answer
    cost = cost_frac(answer)
    slow = answer.slow[0] if answer.slow else None
    rank = "none" if slow is None else str(slow.verdict.rank)
    since = "" if slow is None else f"since step {slow.verdict.first_bad_step}"
    return [
        ("Step time", units.duration(answer.step_ns), "mean, the longest rank of each step"),
        ("Slow rank", rank, since),
        ("It costs", units.percent(cost) if slow else "–", "of the mean step"),
    ]


def _answer(run: SummarisedRun) -> Component:
    answer = run.answer
    shown: list[Component] = []
    for one in answer.slow:
        facts = [html.Li(sentence(str(fact))) for fact in facts_of(one, answer)]
        shown += [
            html.P(sentence(str(claim_of(one))), className="ms-claim"),
            html.Ul(facts, className="ms-limits"),
        ]
    if answer.slow:
        shown.insert(0, severity_badge(run.severity))
    else:
        shown = [html.P(sentence(str(none_slow(answer))))]
    limits = limit_texts(answer.limits)
    if limits:
        listed = html.Ul([html.Li(limit) for limit in limits], className="ms-limits")
        shown += [html.H3("Limits"), listed]
    return card(
        "Which rank, since when, at what cost", shown, note=sentence(str(steps_seen(answer)))
    )


def _trend(run: SummarisedRun, state: ViewState) -> Component:
    rows = run.trend()
    lengths = [float(row["step_ns"] or 0.0) for row in rows]
    caption = (
        f"Median {units.duration(median(lengths))} (dashed), fastest {units.duration(min(lengths))}, "
        f"longest {units.duration(max(lengths))}."
    )
    return card(
        "Step time over steps",
        [chart(trend_figure(rows), caption, "summary-trend-graph")],
        csv=csv_address(run.run_id, PAGE, "steps", state),
    )


def _heatmaps(run: SummarisedRun, state: ViewState) -> Sequence[Component]:
    csv = csv_address(run.run_id, PAGE, "blocks", state)
    each = run.steps_each
    note = f"Each cell is the mean of {each} steps, labelled with the first." if each > 1 else ""
    slow = run.answer.slow[0].verdict.rank if run.answer.slow else None
    if run.answer.ranks > _MOST_FRAMED:
        slow = None  # The frame would hide the row.
    drawn: list[tuple[str, RankStepMatrix, str]] = [
        ("Own work by rank and step", run.own_work(), "summary-own-graph"),
        ("Waiting and exposed transfer by rank and step", run.exposed(), "summary-exposed-graph"),
    ]
    return [
        card(
            title,
            [chart(_drawn(matrix, slow), f"{sentence(matrix.meaning)} {note}", name)],
            csv=csv,
        )
        for title, matrix, name in drawn
    ]


def _drawn(matrix: RankStepMatrix, slow: int | None) -> go.Figure:
    """Return the heatmap; of many cells without lines between them, which take a browser longer than the cells."""
    figure = rank_step_heatmap(matrix, slow)
    return figure if slow is not None else figure.update_traces(xgap=0, ygap=0)


def _deeper(run: SummarisedRun, state: ViewState) -> Component:
    path = run.made.run.resolve()
    commands = [
        command_line("diagnose", path, "--steps", _steps(run)),
        command_line("diagnose", path, "--every-step"),
    ]
    lines = [
        "Not in summaries: causes, pipeline bubbles, and which rank each one waited for. "
        "They need full records. The first command accounts for ten steps, the second for all."
    ]
    full = dcc.Link(
        "Account from full records (minutes)",
        href=page_address(run.run_id, "findings", state),
        className="ms-link",
    )
    shown = [html.P(html.Code(command, className="ms-command")) for command in commands]
    return card("Look deeper", [html.P(lines), *shown, full])


def _steps(run: SummarisedRun) -> str:
    """Return ten steps to account for: the first ones of the longest time in which the rank is slow, else the last."""
    if run.answer.slow:
        first, last = max(
            run.answer.slow[0].verdict.slow_steps, key=lambda steps: steps[1] - steps[0]
        )
        return f"{first}:{min(first + 9, last)}"
    first, last = run.answer.steps
    return f"{max(first, last - 9)}:{last}"
