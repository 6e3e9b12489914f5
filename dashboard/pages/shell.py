"""What all pages share: header, tabs, cards, captions, empty states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import dash_mantine_components as dmc
import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.output.text.amounts import shortened
from meshscope.analyze.tables.capabilities import OWN
from meshscope.probe.schema.printable import printable

from ..figures.theme import GRAPH_CONFIG
from ..plain import units
from ..runs.loaded_run import RECENT_NS, LoadedRun, is_running, layout_words
from ..runs.store import News
from ..view.addresses import inner, json_address, page_address, public
from ..view.state import ViewState, parse_path
from .plain_rows import plain_rows

NEWS_POLL_MS = 10_000
"""How often a page of a running job asks whether it has gone on."""


def header(run_id: str | None = None, facts: Sequence[Component] = ()) -> Component:
    """Return the bar at the top of every page.

    Args:
        run_id: Run that the page is of, None for none.
        facts: What the bar says of it.
    """
    crumbs: list[Component] = [dcc.Link("meshscope", href=public("/"), className="ms-brand")]
    if run_id is not None:
        crumbs += [html.Span("/", className="ms-slash"), html.Span(run_id, className="ms-crumb")]
    # What it does, and its words, are the browser's alone.
    choice = html.Button("Theme", id="theme-choice", type="button", className="ms-theme")
    words = html.Button("Glossary", id="glossary-open", type="button", className="ms-theme")
    parts = [*crumbs, html.Span(className="ms-spring"), *facts, words, choice]
    return html.Header(html.Div(parts, className="ms-header-inner"), className="ms-header")


def title_of(path: str | None) -> str:
    """Return the title of the window at an address, by which tabs and history are separated."""
    own = inner(path)
    place = parse_path(own)
    if place is not None:
        return f"{place[1].capitalize()} · {place[0]} · meshscope"
    return "Runs · meshscope" if own == "/" else "meshscope"


def run_page(
    run: LoadedRun,
    active: str,
    children: Sequence[Component],
    state: ViewState,
    pages: Iterable[str],
) -> Component:
    """Return a page of one run in its frame.

    Args:
        run: The run.
        active: Name of the page.
        children: What the page shows.
        state: The view; parts of its address that are not followed are named above the page.
        pages: Names of all pages, in the order of their tabs.
    """
    address = json_address(run.run_id, active, state)
    twin = html.A("JSON", id="json-link", href=address, className="ms-json")
    links = tabs(run, active, state, pages)
    ignored = html.Div(rejected_notice(state.rejected), id="ignored")
    return html.Div(
        [
            header(
                run.run_id, [html.Div(facts(run), id="run-facts", className="ms-facts-line"), twin]
            ),
            html.Nav(
                html.Div(links, id="run-tabs", className="ms-nav-inner ms-tabs"),
                className="ms-nav",
            ),
            *([_watch_for_news(run)] if is_running(run) and active != "live" else ()),
            html.Main([ignored, *children], className="ms-main"),
        ]
    )


def _watch_for_news(run: LoadedRun) -> Component:
    """Return what asks whether a running job has gone on, and the place where that is said.

    The page stays as it is until its reader wants the new steps: a figure that changes under the eyes of
    somebody who zooms in on it would be lost.
    """
    return html.Div(
        [
            dcc.Interval(id="news-poll", interval=NEWS_POLL_MS),
            # As text: a browser's numbers do not hold nanoseconds since the epoch.
            dcc.Store(id="news-since", data=str(run.times.written_ns)),
            html.Div(id="news", role="status", className="ms-news"),
        ]
    )


_NEWS = {
    News.MORE: "The run has recorded more since this page was read. ",
    News.OVER: "The job has ended since this page was read. ",
    News.SILENT: f"{RECENT_NS // (60 * 10**9)} minutes without a record: the job may hang. ",
}


def news(address: str, found: News) -> Component:
    """Return the word that a page of a running job is out of date, with a link to the same view of now.

    Args:
        address: Of the view.
        found: What happened since it was drawn.
    """
    link = html.A("Show it as it is now", href=address, className="ms-link")
    return html.P([_NEWS[found], link], className="ms-notice")


def tabs(run: LoadedRun, active: str, state: ViewState, pages: Iterable[str]) -> list[Component]:
    """Return the links to the pages of a run; each takes along what is selected on this one."""
    return [
        dcc.Link(
            _tab_words(run, name),
            href=page_address(run.run_id, name, state),
            className="ms-tab ms-tab-active" if name == active else "ms-tab",
        )
        for name in pages
    ]


def _tab_words(run: LoadedRun, name: str) -> list[Component | str]:
    count = len(run.diagnosis.findings) if name == "findings" else 0
    words: list[Component | str] = [name.capitalize()]
    return [*words, " ", html.Span(str(count), className="ms-count")] if count else words


def plain_page(children: Sequence[Component]) -> Component:
    """Return the frame of a page that belongs to no run."""
    return html.Div([header(), html.Main(list(children), className="ms-main")])


def card(title: str, children: Sequence[Component], *, note: str = "", csv: str = "") -> Component:
    """Return a titled white card.

    Args:
        title: Its heading.
        children: What it holds.
        note: A line below the heading.
        csv: Where its table is to be had as CSV; empty for none.
    """
    heading = html.H2(title, className="ms-card-title")
    head: list[Component] = [heading]
    if csv:
        link = html.A("CSV", href=csv, className="ms-json", title=f"{title}, as CSV")
        head = [
            html.Div([heading, html.Span(className="ms-spring"), link], className="ms-card-row")
        ]
    if note:
        head.append(html.P(note, className="ms-note"))
    return paper([html.Div(head, className="ms-card-head"), *children])


def paper(children: Sequence[Component], style: str = "") -> Component:
    """Return a white box without a title.

    Args:
        children: What it holds.
        style: Further CSS classes.
    """
    box: Component = dmc.Paper(
        list(children), withBorder=True, className=f"ms-card {style}".strip()
    )
    return box


def chart(figure: go.Figure, caption: str, graph_id: str) -> Component:
    """Return a figure with the caption that says its key number, and its numbers as a table."""
    graph = dcc.Graph(id=graph_id, figure=figure, config=GRAPH_CONFIG, className="ms-graph")
    # The browser fills it from the figure when somebody opens it.
    rows = html.Details(
        [html.Summary("View as table"), html.Div(className="ms-figure-table")],
        className="ms-details ms-figure-data",
    )
    words = html.Figcaption(caption, id=f"{graph_id}-caption")
    return html.Figure([graph, words, rows], className="ms-figure")


def empty(title: str, text: str) -> Component:
    """Return what stands where there is nothing to show."""
    return html.Div([html.P(title, className="ms-empty-title"), html.P(text)], className="ms-empty")


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    numeric_from: int = 1,
    marked: int = 0,
) -> Component:
    """Return a plain table.

    Args:
        columns: Their names.
        rows: The cells of each row.
        numeric_from: From which column on cells are right-aligned.
        marked: How many rows stand out, from the first one on; they have a word that says why.
    """

    def row(cells: Sequence[Any], cell: Callable[..., Component], style: str = "") -> Component:
        return html.Tr(
            [
                cell(value, className="ms-number" if at >= numeric_from else "")
                for at, value in enumerate(cells)
            ],
            className=style,
        )

    made = plain_rows(rows, numeric_from, marked)
    given: dict[str, Any] = {"data-rows": made}
    return html.Div(
        html.Table(
            [
                html.Thead(row(columns, html.Th)),
                # A key of its own: what the browser made must not stay in the body of another table.
                html.Tbody(key="made", **given)
                if made
                else html.Tbody(
                    [
                        row(cells, html.Td, "ms-marked" if at < marked else "")
                        for at, cells in enumerate(rows)
                    ],
                    key="drawn",
                ),
            ],
            className="ms-table",
        ),
        className="ms-table-wrap",
    )


def key_numbers(numbers: Sequence[tuple[str, str, str]]) -> Component:
    """Return a few numbers beside each other: what each is, its value, and a note below it."""
    return html.Div(
        [
            html.Div(
                [
                    html.Div(name, className="ms-key-name"),
                    html.Div(value, className="ms-key-value"),
                    html.Div(note, className="ms-key-note", title=note),
                ],
                className="ms-key",
            )
            for name, value, note in numbers
        ],
        className="ms-keys ms-keys-few",
    )


def name_cell(name: str | None, otherwise: str = "–") -> Component:
    """Return the name of a kernel or operator on one line of a table; pointing at it tells all of it."""
    words = shortened(name) if name else otherwise
    return html.Span(words, title=printable(name or ""), className="ms-name")


def not_found(message: str) -> Component:
    """Return the page for an address that leads nowhere."""
    return plain_page(
        [
            html.H1("Nothing to show here", className="ms-title"),
            html.P(message, className="ms-lead"),
            dcc.Link("All runs", href=public("/"), className="ms-button"),
        ]
    )


def facts(run: LoadedRun) -> list[Component]:
    """Return what the bar at the top says of a run: its mesh, schedule and origin, and whether it runs."""
    about = [layout_words(run.trace)]
    schedule = run.trace.run.get("schedule")
    if schedule:
        about.append(str(schedule))
    if run.trace.origin != OWN:
        about.append(f"from {run.trace.origin}")
    if run.times.as_of_ns is not None:
        about.append(f"as of {units.clock_time(run.times.as_of_ns)} UTC")
    if state := _state_words(run):
        about.append(state)
    return [html.Span(fact, className="ms-fact") for fact in about]


def _state_words(run: LoadedRun) -> str:
    """Return whether the job of a capture of ours runs, ended in order, or broke off."""
    if not run.trace.capabilities.sees_processes_end:
        return ""
    if run.trace.frame("progress").empty:
        return "ended in order"
    ends = [finding for finding in run.diagnosis.findings if finding.is_end]
    if not ends and is_running(run):
        return "running"
    return str(ends[0].kind).replace("_", " ") if ends else "did not end in order"


def rejected_notice(rejected: Sequence[str]) -> list[Component]:
    """Name the parts of the address that are left out, nothing where all is followed."""
    words = f"Ignored in the address: {', '.join(rejected)}."
    return [notice(words)] if rejected else []


def notice(text: str) -> Component:
    """Return a line that a visitor should see before what is below it."""
    return html.P(text, className="ms-notice")


def gone_notice(error: str) -> list[Component]:
    """Return what stands in place of a view whose run cannot be read any more."""
    return [notice(f"This run cannot be read any more: {error}")]
