"""A comparison of two runs as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...findings.comparison import unlike
from ...wording.quantities import percent, percent_change
from ...wording.words import class_label, counted, sentence
from ..document import Block, Item, Lines, Listing, Table, facts, section
from .amounts import milliseconds, shortened

NO_INTERVAL = "one step: no interval"
"""Said in place of the interval of a change, where a run has but one step."""
_NOTHING = milliseconds(0.0)


def comparison_document(result: Mapping[str, Any]) -> list[Block]:
    """Return both runs, what changed by class, findings, operators, kernels; times in ms per step."""
    return [
        Lines(list(_head(result))),
        *section("Where the step changed", _classes(result)),
        *section("Findings", Listing(list(_findings(result["findings"])))),
        *section("Operators", _changes(result["operators"], "operator")),
        *section("Kernels", _changes(result["kernels"], "name")),
        *section("What this result could not see", facts(result["limits"])),
    ]


def _head(result: Mapping[str, Any]) -> Iterator[str]:
    differs = unlike(result["setup"])
    if differs is not None:
        yield sentence(str(differs))
    for name in ("before", "after"):
        run = result[name]
        mfu = "" if run["mfu"] is None else f", MFU {percent(run['mfu'], 2)}"
        yield (
            f"{name}: {run['run']}, {counted(run['ranks'], 'rank')}, {counted(run['steps'], 'step')} of "
            f"{milliseconds(run['step_time_ns'])} ms{mfu}"
        )
    error = result["error_ns"]
    chance = NO_INTERVAL if error is None else f"± {error / 1e6:.3f} ms"
    if error is not None and abs(result["change_ns"]) <= error:
        chance += ", so within its error"
    yield f"change of the step: {_signed(result['change_ns'])} ms ({percent_change(result['change_frac'])}; {chance})"
    for name, pair in result["setup"].items():
        yield f"differs: {name.replace('_', ' ')} {_or_unknown(pair['before'])} → {_or_unknown(pair['after'])}"


def _classes(result: Mapping[str, Any]) -> Table:
    rows = [
        (
            class_label(row["class"]),
            milliseconds(row["before_ns"]),
            milliseconds(row["after_ns"]),
            _signed(row["change_ns"]),
            "unknown" if row["error_ns"] is None else f"{row['error_ns'] / 1e6:.3f}",
        )
        for row in result["classes"]
        if {milliseconds(row["before_ns"]), milliseconds(row["after_ns"])} != {_NOTHING}
    ]
    error = result["error_ns"]
    total = (
        "total",
        *(milliseconds(result[side]["step_time_ns"]) for side in ("before", "after")),
        _signed(result["change_ns"]),
        "unknown" if error is None else f"{error / 1e6:.3f}",
    )
    return Table(("class", "before ms", "after ms", "change ms", "±"), [*rows, total])


def _findings(findings: Sequence[Mapping[str, Any]]) -> Iterator[Item]:
    for finding in findings:
        before, after = (milliseconds(finding[f"{side}_ns"]) for side in ("before", "after"))
        costs = f"{before} → {after} ms"
        if "unknown" in (before, after):
            costs = "cost unknown"
        yield Item(f"{finding['state']}: {finding['claim']} ({costs})")


def _changes(rows: Sequence[Mapping[str, Any]], key: str) -> Table:
    headers = [key, "shapes"] if key == "operator" else ["kernel"]
    headers += ["calls", "before ms", "after ms", "change ms", "more calls ms", "longer calls ms"]
    cells = [
        (
            shortened(row[key] or "none recorded"),
            *([shortened(row["shapes"] or "–")] if key == "operator" else []),
            f"{row['calls_before']:.4g} → {row['calls_after']:.4g}",
            milliseconds(row["before_ns"]),
            milliseconds(row["after_ns"]),
            *(_signed(row[name]) for name in ("change_ns", "more_ns", "longer_ns")),
        )
        for row in rows
    ]
    return Table(headers, cells)


def _signed(time_ns: float) -> str:
    return f"{time_ns / 1e6:+.3f}"


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)
