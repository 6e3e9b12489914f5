"""Where the hosts were, in a trace that holds no device work."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.kernels.host_table import (
    ANNOTATION,
    CALL,
    FUNCTION,
    NOTHING,
    OPERATOR,
    HostReport,
    Named,
    host_report,
)
from ...explain.run_account import Account
from ...tables.classes import UNATTRIBUTED
from ...tables.results import Finding
from ...wording.message import Message, message
from .idle import MIN_NAMED, SHOWN

_CALLS_SHOWN = 0.001
"""Share of the step from which calls of a device library are worth words."""
_NAME_SHOWN = 0.01
"""Share of the step from which one operator, annotation or function is."""
_OF_HOSTS = ("op", "annotation", "python_call")
"""Tables of what hosts did."""


def host_only_findings(account: Account) -> Iterator[Finding]:
    """Steps of which no device work was recorded, though operators, annotations or Python functions of the host were.

    What a host does is no cost by itself: it may compute, or wait for what was not recorded.
    """
    trace = account.trace
    if trace.row_count("kernel") or not any(map(trace.row_count, _OF_HOSTS)):
        return
    if account.class_frac(UNATTRIBUTED) < MIN_NAMED:
        return
    report = host_report(trace, account.windows)
    if report is None:
        return
    yield Finding(
        kind=FindingKind.MISSING_DATA,
        severity=Severity.INFO,
        where={},
        claim=message("host_alone.claim"),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=tuple(_evidence(report)),
        remedy=message("host_alone.remedy"),
        cause="host_alone",
    )


def _evidence(report: HostReport) -> Iterator[Message]:
    frac = report.frac
    yield message(
        "host_alone.time",
        operator=frac[OPERATOR],
        annotation=frac[ANNOTATION],
        nothing=frac[NOTHING],
    )
    if frac[CALL] >= _CALLS_SHOWN:
        yield message("host_alone.calls", call=frac[CALL])
    if frac[FUNCTION] >= SHOWN:
        yield message("host_alone.python", function=frac[FUNCTION])
    operators, annotations = _items(report.operators), _items(report.annotations)
    functions = _items(report.functions)
    if operators:
        yield message("host_alone.operators", items=operators)
    if annotations:
        yield message("host_alone.annotations", items=annotations)
    if functions:
        yield message("host_alone.functions", items=functions)


def _items(named: list[Named]) -> list[Message]:
    return [
        message("host_alone.item", name=one.name, share=one.frac)
        for one in named
        if one.frac >= _NAME_SHOWN
    ]
