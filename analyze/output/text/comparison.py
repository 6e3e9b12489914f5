"""A comparison of two runs as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...wording.labels import class_label
from ...wording.text_table import text_table
from ...wording.words import counted
from .amounts import limit_lines, milliseconds, shortened
from .page import page


def comparison_to_text(result: Mapping[str, Any], *, markdown: bool = False) -> str:
    """Return both runs, what changed by class, findings, operators, kernels; times in ms per step."""
    heading = "## {}" if markdown else "{}"
    blocks: list[tuple[str | None, list[str]]] = [
        (None, list(_head(result))),
        ("Where the step changed", _classes(result, markdown=markdown)),
        ("Findings", list(_findings(result["findings"]))),
        ("Operators", _changes(result["operators"], "operator", markdown=markdown)),
        ("Kernels", _changes(result["kernels"], "name", markdown=markdown)),
    ]
    lines: list[str] = []
    for title, body in blocks:
        if body:
            lines += [heading.format(title)] if title else []
            lines += [*([""] if markdown and title else []), *body, ""]
    return page([*lines[:-1], *limit_lines(result["limits"])], markdown=markdown)


def _head(result: Mapping[str, Any]) -> Iterator[str]:
    for name in ("before", "after"):
        run = result[name]
        mfu = "" if run["mfu"] is None else f", MFU {run['mfu']:.2%}"
        yield (
            f"{name}: {run['run']}, {counted(run['ranks'], 'rank')}, {counted(run['steps'], 'step')} of "
            f"{milliseconds(run['step_time_ns'])} ms{mfu}"
        )
    error = result["error_ns"]
    chance = "its error is not known" if error is None else f"± {error / 1e6:.3f} ms"
    yield f"change of the step: {_signed(result['change_ns'])} ms ({result['change_frac']:+.1%}; {chance})"
    for name, pair in result["setup"].items():
        yield f"differs: {name.replace('_', ' ')} {_or_unknown(pair['before'])} → {_or_unknown(pair['after'])}"


def _classes(result: Mapping[str, Any], *, markdown: bool) -> list[str]:
    rows = [
        (
            class_label(row["class"]),
            milliseconds(row["before_ns"]),
            milliseconds(row["after_ns"]),
            _signed(row["change_ns"]),
            "unknown" if row["error_ns"] is None else f"{row['error_ns'] / 1e6:.3f}",
        )
        for row in result["classes"]
    ]
    error = result["error_ns"]
    total = (
        "total",
        *(milliseconds(result[side]["step_time_ns"]) for side in ("before", "after")),
        _signed(result["change_ns"]),
        "unknown" if error is None else f"{error / 1e6:.3f}",
    )
    headers = ["class", "before ms", "after ms", "change ms", "±"]
    return text_table(headers, [*rows, total], markdown=markdown)


def _findings(findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for finding in findings:
        before, after = (milliseconds(finding[f"{side}_ns"]) for side in ("before", "after"))
        costs = f"{before} → {after} ms"
        if "unknown" in (before, after):
            costs = "cost unknown"
        yield f"- {finding['state']}: {finding['claim']} ({costs})"


def _changes(rows: Sequence[Mapping[str, Any]], key: str, *, markdown: bool) -> list[str]:
    if not rows:
        return []
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
    return text_table(headers, cells, markdown=markdown)


def _signed(time_ns: float) -> str:
    return f"{time_ns / 1e6:+.3f}"


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)
