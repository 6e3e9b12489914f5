"""The overview of a run: where did the step time go, and can it be believed?"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze import Bar, Finding
from meshscope.analyze.findings.none_found import nothing_found
from meshscope.analyze.output.causes import shown_causes, waiting_sum
from meshscope.analyze.output.palette import HATCHED
from meshscope.analyze.wording.quantities import percent
from meshscope.analyze.wording.words import class_label, place_words, sentence

from ..answers.trend import trend
from ..answers.views import trust
from ..figures.trend import trend_figure
from ..figures.waterfall import meanings, shown_bars, waterfall
from ..plain import units
from ..runs.loaded_run import LoadedRun
from ..runs.mesh import slowest_rank
from ..view.addresses import csv_address, page_address
from ..view.state import ViewState
from .findings import severity_badge
from .shell import card, chart, empty, table

_SHOWN_FINDINGS = 3
_MOST_DEVICES = 64
"""More rows are no table that anybody reads."""
_LEAST_TREND = 3
"""Steps from which a line over them shows something."""
_ACROSS = (
    "The causes below cut across these classes: a slow rank costs its own extra work and the "
    "waiting of the others."
)
_NEGATIVE = (
    "Negative: the step gets longer without the cause. A repair sets typical times, and some recorded "
    "times were shorter."
)


def layout(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the overview page."""
    return [
        html.H1("Overview", className="ms-unseen"),
        html.Div([_key_number(*number) for number in key_numbers_of(run)], className="ms-keys"),
        dmc.Grid(
            [
                dmc.GridCol(
                    [
                        _account(run),
                        *_devices(run),
                        *_trend(run, state),
                        *_causes(run),
                        *_memory(run),
                    ],
                    span={"base": 12, "lg": 8},
                ),
                dmc.GridCol(
                    [
                        first_findings(run, state),
                        trust_panel(trust(run), page_address(run.run_id, "trust", state)),
                    ],
                    span={"base": 12, "lg": 4},
                ),
            ],
            gutter="lg",
        ),
    ]


def trust_panel(facts: dict[str, Any], link: str) -> Component:
    """Return what was captured, on which assumptions, and every stated limit.

    Args:
        facts: What the overview says of them.
        link: Address of the page that has all.
    """
    world = facts["world_size"]
    captured = facts["ranks_captured"]
    lines = [
        ("Written by", facts["origin"]),
        ("Capture level", facts["capture_level"] or units.UNKNOWN),
        ("Ranks", f"{captured} of {world}" if world else str(captured)),
        ("Steps recorded", str(facts["steps_recorded"])),
        ("Peak FLOP/s from", facts["peak_source"] or units.UNKNOWN),
        ("FLOPs convention", facts["flops_convention"] or units.UNKNOWN),
        ("Step time of the replay off by", units.percent(facts["model_error_frac"], places=2)),
    ]
    limits = facts["limits"]
    listed = (
        html.Ul([html.Li(limit) for limit in limits], className="ms-limits")
        if limits
        else html.P("No limits: everything requested was captured.", className="ms-note")
    )
    pairs = [item for name, value in lines for item in (html.Dt(name), html.Dd(str(value)))]
    more = dcc.Link("Overhead, clocks, losses and assumptions", href=link, className="ms-link")
    return card("Trust", [html.Dl(pairs, className="ms-facts"), html.H3("Limits"), listed, more])


def key_numbers_of(run: LoadedRun) -> list[tuple[str, str, str]]:
    """Return name, value and note of each number at the top; the note of one that is not known says why."""
    diagnosis, use = run.diagnosis, run.diagnosis.utilization
    metrics, bubble = diagnosis.metrics, run.diagnosis.bubble
    step_time = units.duration(diagnosis.step_time_ns)
    is_known = step_time != units.UNKNOWN
    note = "mean of the analysed steps" if is_known else "there are no steps"
    why_unknown = diagnosis.unknown_because
    no_rate = str(why_unknown.get("step_time_ns", "")) or "the tokens of a step are not known"
    return [
        ("Step time", step_time, note),
        ("MFU", units.percent(use.mfu), str(use.unknown_because) or f"peak: {use.peak_source}"),
        (
            "Throughput",
            units.rate(use.tokens_per_s, "tok/s"),
            no_rate if use.tokens_per_s is None else "tokens of all replicas",
        ),
        (
            "Pipeline bubble",
            units.percent(bubble.measured_frac),
            str(bubble.unknown_because)
            or f"waiting; with equal stages {units.percent(bubble.ideal_frac)} of a shorter step",
        ),
        (
            "Exposed communication",
            units.percent(metrics.get("exposed_comm_frac")),
            str(why_unknown.get("exposed_comm_frac", ""))
            or "transfers with no compute beside them",
        ),
        _slowest(run),
    ]


def _slowest(run: LoadedRun) -> tuple[str, str, str]:
    slowest = slowest_rank(run.diagnosis)
    if slowest is None:
        return "Slowest rank", units.UNKNOWN, "no rank could be compared with another"
    # As the report says it: one figure for one rank.
    slower = percent(slowest.slowdown - 1.0)
    return "Slowest rank", slower, f"rank {slowest.rank}, slower than its peers over all steps"


def _key_number(name: str, value: str, note: str) -> Component:
    unknown = " ms-key-unknown" if value == units.UNKNOWN else ""
    return html.Div(
        [
            html.Div(name, className="ms-key-name"),
            html.Div(value, className="ms-key-value" + unknown),
            html.Div(note, className="ms-key-note", title=note),
        ],
        className="ms-key",
    )


def _account(run: LoadedRun) -> Component:
    bars, title = run.diagnosis.waterfall, "Where the step time went"
    if not shown_bars(bars):
        why = "Without the begin and end of a step there is no time to account for."
        return card(title, [empty("No step was recorded", why)])
    largest = max(shown_bars(bars), key=lambda bar: bar.frac, default=None)
    caption = (
        f"The bars sum to {100 * sum(bar.frac for bar in bars):.1f} % of "
        f"{units.duration(sum(bar.dur_ns for bar in bars))}, averaged over ranks and steps."
    )
    if largest is not None:
        caption += (
            f" The largest is {class_label(largest.name)} with {units.percent(largest.frac)}."
        )
    if shown_causes(run.diagnosis):
        caption += f" {_ACROSS}"
    return card(title, [_key(bars), chart(waterfall(bars), caption, "waterfall-graph")])


def _devices(run: LoadedRun) -> list[Component]:
    """Return the account of each device of the ranks that compute on several; nothing without such ranks."""
    uses = run.diagnosis.devices
    if not uses:
        return []
    shares = ["busy_frac", "compute_frac", "communication_frac", "other_frac"]
    shares += ["beside_frac", "idle_frac"]
    rows = [
        [str(use.rank), str(use.device), *(units.percent(getattr(use, name)) for name in shares)]
        for use in uses[:_MOST_DEVICES]
    ]
    columns = ["Rank", "Device", "Busy", "Compute", "Communication alone", "Copies and others"]
    columns += ["Idle beside another", "Idle with all"]
    note = "Shares of the steps. The account above takes the devices of a rank as one."
    if len(uses) > len(rows):
        note += f" {len(uses) - len(rows):,} more devices are not shown; the JSON form has all."
    return [card("Devices of one rank", [table(columns, rows)], note=note)]


def _trend(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the step time over steps; nothing where there are too few to see one."""
    rows = trend(run)
    if len(rows) < _LEAST_TREND:
        return []
    lengths = [row["step_ns"] for row in rows]
    longest = max(rows, key=lambda row: row["step_ns"])
    caption = (
        f"Median {units.duration(median(lengths))} (dashed), fastest {units.duration(min(lengths))}, "
        f"longest {units.duration(longest['step_ns'])} in step {longest['step']}."
    )
    if (mfu := run.diagnosis.utilization.mfu) is not None and longest["mfu"] is not None:
        caption += f" MFU {units.percent(mfu)} on average, {units.percent(longest['mfu'])} in step {longest['step']}."
    return [
        card(
            "Step time over steps",
            [chart(trend_figure(rows), caption, "trend-graph")],
            csv=csv_address(run.run_id, "overview", "trend", state),
        )
    ]


def _key(bars: Sequence[Bar]) -> Component:
    """Return what the colours of the waterfall mean."""
    return html.Ul(
        [
            html.Li(
                [
                    html.Span(
                        className=f"ms-swatch{' ms-hatched' if colour in HATCHED else ''}",
                        style={"backgroundColor": colour},
                    ),
                    meaning,
                ]
            )
            for colour, meaning in meanings(bars).items()
        ],
        className="ms-legend",
    )


def first_findings(run: LoadedRun, state: ViewState) -> Component:
    """Return the findings to look at first, or that there are none."""
    findings = run.diagnosis.findings
    if not findings:
        return card(
            "What to fix first",
            [html.P(sentence(str(nothing_found(run.diagnosis))), className="ms-note")],
        )
    link = page_address(run.run_id, "findings", state)
    words = (
        "Evidence and remedies"
        if len(findings) <= _SHOWN_FINDINGS
        else f"All {len(findings)} findings"
    )
    shown = [_first_finding(finding) for finding in findings[:_SHOWN_FINDINGS]]
    return card("What to fix first", [*shown, dcc.Link(words, href=link, className="ms-link")])


def _first_finding(finding: Finding) -> Component:
    cost = "cost not known"
    if finding.cost_frac is not None:
        cost = f"costs {units.percent(finding.cost_frac)} of the step"
    if finding.returns_frac is not None:
        cost += f", fixing it returns {units.percent(finding.returns_frac)}"
    head = [severity_badge(finding.severity), html.Span(cost, className="ms-place")]
    claim = html.P(str(finding.claim), className="ms-claim")
    return html.Div([html.Div(head, className="ms-finding-head"), claim], className="ms-first")


def _causes(run: LoadedRun) -> list[Component]:
    rows = [
        [
            cause.kind.replace("_", " "),
            place_words(cause.where) or "whole job",
            units.percent(cause.share_frac),
            units.percent(cause.removal_gain_frac),
            units.duration(cause.direct_ns),
            units.duration(cause.induced_wait_ns),
        ]
        for cause in shown_causes(run.diagnosis)
    ]
    if not rows:
        return []
    columns = ["Cause", "Where", "Share", "Removal gain", "Direct", "Induced wait"]
    note = "Shares sum to the loss. Removal gain is what repairing this cause alone returns."
    if any(min(c.share_frac, c.removal_gain_frac) < 0 for c in shown_causes(run.diagnosis)):
        note += f" {_NEGATIVE}"
    total = waiting_sum(run.diagnosis)
    drawn = [table(columns, rows, numeric_from=2)]
    if total is not None:
        drawn.append(html.P(sentence(str(total)), className="ms-sum"))
    return [card("Causes, by replay without them", drawn, note=note)]


def _memory(run: LoadedRun) -> list[Component]:
    rows = [
        [
            "all stages" if row["stage"] < 0 else f"stage {int(row['stage'])}",
            *(
                units.size(_number(row[name]))
                for name in ("peak_bytes", "rss_bytes", "capacity_bytes")
            ),
            units.percent(_number(row["peak_frac"])),
        ]
        for row in run.diagnosis.memory.to_dict("records")
    ]
    if not rows:
        return []
    # Where no allocator was seen, the share is that of the resident set.
    is_resident = all(
        _number(row["peak_bytes"]) is None for row in run.diagnosis.memory.to_dict("records")
    )
    share = "Resident of capacity" if is_resident else "Peak of capacity"
    columns = ["Stage", "Peak allocated", "Resident set", "Capacity", share]
    return [card("Memory by stage", [table(columns, rows)])]


def _number(value: Any) -> float | None:
    """Return a cell of a frame as a float; pandas' missing values become None."""
    try:
        return float(value)
    except TypeError:
        return None
