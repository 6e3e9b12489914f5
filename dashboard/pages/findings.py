"""The findings of a run: what to fix first, why, and what it returns."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from meshscope.analyze import Finding
from meshscope.analyze.findings.location import ranks_named
from meshscope.analyze.findings.none_found import nothing_found, unknown_places
from meshscope.analyze.output.timeline.raster import MAX_SEPARATED_ROWS
from meshscope.analyze.wording.limits import limit_texts
from meshscope.analyze.wording.words import place_words, sentence
from meshscope.probe.schema.terms import FindingKind

from ..answers.views import shown_step
from ..figures.theme import SEVERITY_COLOUR
from ..plain import units
from ..runs.loaded_run import STANDSTILL, LoadedRun
from ..runs.typical import typical_step
from ..view.addresses import page_address
from ..view.state import METRICS, ViewState
from .shell import card, empty, paper


def layout(run: LoadedRun, state: ViewState) -> list[Component]:
    """Return the page of findings, most costly first."""
    findings = run.diagnosis.findings
    content: list[Component] = [html.H1("What to fix first", className="ms-title")]
    if findings:
        content += [_card(run, finding, state) for finding in findings]
        content += _not_reported(run)
    else:
        content.append(empty("No findings", sentence(str(nothing_found(run.diagnosis)))))
    if run.diagnosis.limits:
        limits = html.Ul(
            [html.Li(limit) for limit in limit_texts(run.diagnosis.limits)], className="ms-limits"
        )
        content.append(card("What these findings could not see", [limits]))
    return content


def _not_reported(run: LoadedRun) -> list[Component]:
    """Return why other findings may be missing; nothing where all causes are known."""
    reasons = limit_texts(run.diagnosis.unknown_causes)
    if not reasons or not run.diagnosis.run["steps"]:
        return []
    listed = html.Ul([html.Li(reason) for reason in reasons], className="ms-limits")
    return [card(f"{unknown_places(run.diagnosis)}: not known", [listed])]


def severity_badge(severity: str) -> Component:
    """Return the word and the colour of a severity."""
    colour = SEVERITY_COLOUR.get(severity, "gray")
    badge: Component = dmc.Badge(str(severity), color=colour, variant="light", radius="sm")
    return badge


def _card(run: LoadedRun, finding: Finding, state: ViewState) -> Component:
    head = html.Div(
        [
            severity_badge(finding.severity),
            html.Span(str(finding.kind).replace("_", " "), className="ms-kind"),
            html.Span(place_words(finding.where), className="ms-place"),
        ],
        className="ms-finding-head",
    )
    evidence = html.Ul([html.Li(str(fact)) for fact in finding.evidence], className="ms-evidence")
    body = html.Div(
        [
            html.Div([html.H3("Evidence"), evidence]),
            html.Div([html.H3("Remedy"), html.P(str(finding.remedy)), _links(run, finding, state)]),
        ],
        className="ms-finding-body",
    )
    numbers = html.Dl(_numbers(finding), className="ms-finding-numbers")
    claim = html.H2(str(finding.claim), className="ms-claim")
    return paper([head, claim, numbers, body], f"ms-finding ms-{finding.severity}")


def _numbers(finding: Finding) -> list[Component]:
    numbers = [
        ("Costs", units.percent(finding.cost_frac), "of the step time"),
        ("Fixing it returns", units.percent(finding.returns_frac), _of_step(finding)),
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
    if finding.returns_interval is None:
        return "of the step time"
    low, high = map(units.percent, finding.returns_interval)
    return f"of the step time, between {low} and {high}"


_SHOWN_BY = {
    FindingKind.STAGE_IMBALANCE: "compute",
    FindingKind.EMBEDDING_IMBALANCE: "compute",
    FindingKind.HOST_STALL: "own",
    FindingKind.GC_PAUSE: "own",
    FindingKind.DATA_STALL: "own",
    FindingKind.CHECKPOINT_STALL: "own",
    FindingKind.JITTER: "own",
    FindingKind.PIPELINE_BUBBLE: "wait",
    FindingKind.EXPOSED_COMMUNICATION: "wait",
    FindingKind.SLOW_LINK: "wait",
    FindingKind.SLOW_WIRE: "wait",
}
"""The metric of the mesh in which a finding is seen: a heavy stage is like its peers, and unlike other stages."""


_OF_MEMORY = (FindingKind.MEMORY_IMBALANCE, FindingKind.MEMORY_HEADROOM)
_DRAWN = ("span", "kernel", "collective", "p2p")
"""Tables of what has a place on a timeline; a trace of host operators or memory alone has none of them."""


def _links(run: LoadedRun, finding: Finding, state: ViewState) -> Component:
    """Return the links to the pages that show a finding; none to a page that would be empty."""
    place = _place(run, finding, state)
    if finding.kind in _OF_MEMORY:
        return _see(run, {"memory": place})
    if not any(run.trace.row_count(name) for name in _DRAWN):
        return _see(run, {})
    has_path = not run.path_unknown_because(shown_step(run, place))
    views = {
        "timeline": place.with_path(shown=has_path or state.path),
        "mesh": place.of_metric(_SHOWN_BY.get(finding.kind, METRICS[0])),
    }
    return _see(run, views)


def _see(run: LoadedRun, views: dict[str, ViewState]) -> Component:
    return html.Div(
        [
            dcc.Link(
                f"See the {page}", href=page_address(run.run_id, page, view), className="ms-link"
            )
            for page, view in views.items()
        ],
        className="ms-links",
    )


def _place(run: LoadedRun, finding: Finding, state: ViewState) -> ViewState:
    """Return the view in which a finding is seen: the rank and a step that it names.

    What it does not name stays as the visitor selected it, and so does a step among several.
    """
    ranks = ranks_named(finding.where)
    # Of a few ranks all are in sight; the view of one would hide the others.
    if len(ranks) == 1 or (ranks and len(run.trace.ranks) > MAX_SEPARATED_ROWS):
        state = state.around(ranks[0])
    step = _step(run, finding, state.step)
    return state if step is None or step == state.step else state.at_step(step)


def _step(run: LoadedRun, finding: Finding, selected: int | None) -> int | None:
    """Return the step to look at: the selected one if the finding is about it, else a typical one."""
    if finding.kind in STANDSTILL:
        return run.stood_still_in
    first, last = finding.where.get("steps") or (0, -1)
    named = [step for step in finding.steps or range(first, last + 1) if step in run.steps]
    if not named or selected in named:
        return selected
    return typical_step(run.diagnosis, named)
