"""The findings of a run: what to fix first, why, and what it returns."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze import Finding
from meshscope.analyze.all_clear import nothing_found, untold_of
from meshscope.analyze.labels import place_words
from meshscope.analyze.whereabouts import ranks_named
from meshscope.analyze.words import sentence

from .. import units
from ..loaded_run import STANDSTILL, LoadedRun
from ..raster import MAX_SEPARATED_ROWS
from ..state import ViewState
from ..theme import SEVERITY_COLOUR
from .shell import card, empty, paper, rejected_notice, run_page


def layout(run: LoadedRun, state: ViewState) -> Component:
    """Return the page of findings, most costly first."""
    findings = run.diagnosis.findings
    content = rejected_notice(state.rejected)
    content += [html.H1("What to fix first", className="ms-title")]
    if findings:
        content += [_card(run, finding) for finding in findings]
        content += _not_told(run)
    else:
        content.append(empty("No findings", sentence(nothing_found(run.diagnosis))))
    if run.diagnosis.limits:
        limits = html.Ul([html.Li(limit) for limit in run.diagnosis.limits], className="ms-limits")
        content.append(card("What these findings could not see", [limits]))
    return run_page(run, "findings", content, state)


def _not_told(run: LoadedRun) -> list[Component]:
    """Return why other findings may be missing; nothing where all causes are known."""
    reasons = run.diagnosis.untold
    if not reasons or not run.diagnosis.run["steps"]:
        return []
    listed = html.Ul([html.Li(reason) for reason in reasons], className="ms-limits")
    return [card(f"{untold_of(run.diagnosis)}: not known", [listed])]


def severity_badge(severity: str) -> Component:
    """Return the word and the colour of a severity."""
    colour = SEVERITY_COLOUR.get(severity, "gray")
    badge: Component = dmc.Badge(str(severity), color=colour, variant="light", radius="sm")
    return badge


def _card(run: LoadedRun, finding: Finding) -> Component:
    head = html.Div(
        [
            severity_badge(finding.severity),
            html.Span(str(finding.kind).replace("_", " "), className="ms-kind"),
            html.Span(place_words(finding.where), className="ms-place"),
        ],
        className="ms-finding-head",
    )
    evidence = html.Ul([html.Li(fact) for fact in finding.evidence], className="ms-evidence")
    body = html.Div(
        [
            html.Div([html.H3("Evidence"), evidence]),
            html.Div([html.H3("Remedy"), html.P(finding.remedy), _links(run, finding)]),
        ],
        className="ms-finding-body",
    )
    numbers = html.Dl(_numbers(finding), className="ms-finding-numbers")
    claim = html.H2(finding.claim, className="ms-claim")
    return paper([head, claim, numbers, body], f"ms-finding ms-{finding.severity}")


def _numbers(finding: Finding) -> list[Component]:
    numbers = [
        ("Costs", units.percent(finding.cost_frac), "of the step time"),
        ("Fixing it returns", units.percent(finding.removal_gain_frac), _of_step(finding)),
        ("Confidence", units.percent(finding.confidence, places=0), "that the claim holds"),
    ]
    return [
        html.Div(
            [
                html.Dt(name),
                html.Dd([html.Strong(value), html.Span(note if value != units.UNKNOWN else "")]),
            ]
        )
        for name, value, note in numbers
    ]


def _of_step(finding: Finding) -> str:
    """Return what the removal gain is a share of, and its interval where that is known."""
    if finding.removal_gain_interval is None:
        return "of the step time"
    low, high = (units.percent(max(0.0, end)) for end in finding.removal_gain_interval)
    return f"of the step time, between {low} and {high}"


def _links(run: LoadedRun, finding: Finding) -> Component:
    run_id, steps = run.run_id, finding.where.get("steps")
    step = steps[0] if steps else None
    if finding.kind in STANDSTILL:
        step = run.stood_still_in
    rank = None
    if len(run.trace.ranks) > MAX_SEPARATED_ROWS:
        rank = next(iter(ranks_named(finding.where)), None)
    query = ViewState(step=step, rank=rank).query()
    return html.Div(
        [
            dcc.Link(
                "See the timeline", href=f"/run/{run_id}/timeline{query}", className="ms-link"
            ),
            dcc.Link("See the mesh", href=f"/run/{run_id}/mesh", className="ms-link"),
        ],
        className="ms-links",
    )
