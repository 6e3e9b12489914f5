"""The live page: is the job healthy now, and did it end?"""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze.wording.words import counted, sentence

from ..answers.live import RECENT_STEPS, is_ended_early, live
from ..figures.trend import trend_figure
from ..plain import units
from ..runs.loaded_run import LoadedRun
from ..view.addresses import page_address
from ..view.state import ViewState
from .overview import first_findings
from .shell import card, chart, empty, key_numbers, table

POLL_MS = 3000
"""How often the page asks; the run is analysed again only after a rest."""
_MOST_RANKS = 64
_NONE = "–"
_WORDS = {"running": "running", "in_order": "ended in order", "broke_off": "broke off"}
_COLOURS = {"running": "blue", "in_order": "green", "unknown": "gray"}


def layout(run: LoadedRun, state: ViewState, *, can_arm: bool = False) -> list[Component]:
    """Return the live page; it asks again until the job has ended.

    Args:
        run: The run.
        state: The view.
        can_arm: Whether a deep trace can be asked for.
    """
    found = live(run)
    title = html.H1("What the job does now", className="ms-title")
    is_offered = can_arm and found["state"] == "running"
    return [
        *(_arming(title) if is_offered else [title]),
        html.Div(content(run, state, found), id="live-content"),
        dcc.Interval(id="live-poll", interval=POLL_MS, disabled=found["is_over"]),
    ]


def _arming(title: Component) -> list[Component]:
    """Return the title beside a button that records some steps in depth, once somebody has confirmed it."""
    words = (
        "Record the next 3 steps of all ranks of this machine in depth? "
        "The job is slower in these steps, and each rank writes a trace of some MB."
    )
    button = dmc.Button("Record 3 steps in depth", id="live-arm", variant="default", size="xs")
    line = [title, html.Span(className="ms-spring"), button]
    return [
        html.Div(line, className="ms-title-row ms-controls"),
        dcc.ConfirmDialog(id="live-arm-confirm", message=words),
        html.Div(id="live-arm-said", role="status"),
    ]


def content(run: LoadedRun, state: ViewState, found: dict[str, Any]) -> list[Component]:
    """Return all that may change while the job runs.

    Args:
        run: The run as it was read last.
        state: The view; the rank in it stays marked.
        found: Its ``live`` state.
    """
    return [
        _state_line(found),
        key_numbers(_numbers(found)),
        dmc.Grid(
            [
                dmc.GridCol([_steps(found), _ranks(run, state, found)], span={"base": 12, "lg": 8}),
                dmc.GridCol([first_findings(run, state)], span={"base": 12, "lg": 4}),
            ],
            gutter="lg",
        ),
    ]


def _state_line(found: dict[str, Any]) -> Component:
    state = found["state"]
    colour = "red" if is_ended_early(state) else _COLOURS.get(state, "gray")
    words = _WORDS.get(state, state.replace("_", " "))
    badge = dmc.Badge(words, id="live-state", color=colour, variant="light", radius="sm")
    text = sentence(str(found["claim"]))
    if state == "running":
        text += f" Read {units.duration(_whole_seconds(found['read_ago_ns']))} ago."
    return html.Div(
        [badge, html.Span(text, className="ms-place")],
        className="ms-finding-head ms-live-state",
        role="status",
    )


def _whole_seconds(ns: int) -> int:
    """Return a duration without what a reader cannot use; from one second on."""
    return max(round(ns / 1e9), 1) * 10**9


def _numbers(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    slowest = next((row for row in found["ranks"] if row["slowdown"] is not None), None)
    last = found["last_step"]
    score = ("Slowest rank", units.UNKNOWN, "no rank could be compared with another")
    if slowest is not None:
        note = f"rank {slowest['rank']}, time for the same work, peers = 1"
        score = ("Slowest rank", f"{slowest['slowdown']:.2f} x", note)
    missing = found["missing_ranks"]
    ranks = f"missing: {', '.join(map(str, missing[:8]))}" if missing else "none is missing"
    ranks += f" and {len(missing) - 8} more" if len(missing) > 8 else ""
    when = "now" if found["state"] == "running" else "at the end"
    recent = counted(min(len(found["steps"]), RECENT_STEPS), "step")
    return [
        (
            f"Step time {when}",
            units.duration(found["step_time_ns"]),
            f"median of the last {recent}" if last is not None else "no step has ended",
        ),
        (
            f"MFU {when}",
            units.percent(found["mfu"]),
            found["mfu_unknown_because"] or "mean of these steps",
        ),
        score,
        ("Last step", _NONE if last is None else str(last), "the newest that every rank ended"),
        ("Ranks seen", str(len(found["ranks"])), ranks),
        ("Findings", str(len(found["findings"])), "over all analysed steps"),
    ]


def _steps(found: dict[str, Any]) -> Component:
    title, rows = "Step time over steps", found["steps"]
    if not rows:
        return card(title, [empty("No step has ended yet", "The first ones are left out.")])
    figure = trend_figure(rows)
    # A reader's zoom stays while points come.
    figure.update_layout(uirevision="live")
    last = rows[-1]
    caption = f"Step {last['step']} took {units.duration(last['step_ns'])}. Dashed: the median."
    return card(title, [chart(figure, caption, "live-graph")])


def _ranks(run: LoadedRun, state: ViewState, found: dict[str, Any]) -> Component:
    rows = sorted(found["ranks"], key=lambda row: row["rank"] != state.rank)
    cells = [
        [
            _rank_link(run, state, row["rank"]),
            row["host"] or _NONE,
            _NONE if row["slowdown"] is None else f"{row['slowdown']:.2f} x",
            _NONE if row["silent_ns"] is None else units.duration(row["silent_ns"]),
            row["operation"] or _NONE,
            row["ended_by"] or _NONE,
        ]
        for row in rows[:_MOST_RANKS]
    ]
    columns = ["Rank", "Host", "Score", "Last seen", "Waits in", "Process"]
    note = "Score: time for the same work, peers = 1."
    if any(row["silent_ns"] is not None for row in rows):
        note += " Last seen: from a rank's last record to the last record of any rank."
    if len(rows) > _MOST_RANKS:
        note += f" The slowest {_MOST_RANKS} of {len(rows)} ranks; JSON has all."
    is_marked = bool(rows) and rows[0]["rank"] == state.rank
    # When a job is over, nobody waits, and all were seen to the end.
    filled = [at for at in range(len(columns)) if any(row[at] != _NONE for row in cells)]
    columns, cells = [columns[at] for at in filled], [[row[at] for at in filled] for row in cells]
    if cells and len(columns) == 1:
        note = "Scores, hosts and last records are unknown."
    drawn = table(columns, cells, numeric_from=2, marked=int(is_marked))
    return card("Ranks", [drawn], note=note)


def _rank_link(run: LoadedRun, state: ViewState, rank: int) -> Component:
    words = f"rank {rank}" + (", selected" if rank == state.rank else "")
    address = page_address(run.run_id, "timeline", state.around(rank))
    return dcc.Link(words, href=address, className="ms-link")
