"""A gate's result for GitHub Actions: annotations, and the page of a step.

Forms and limits: docs.github.com, "Workflow commands for GitHub Actions": ten errors and ten warnings a step are
shown, a summary holds 1 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshscope.probe.schema.printable import printable

_MOST_ANNOTATIONS = 10
"""Of each level; the first is the verdict."""
_LONGEST = 1000
"""Characters of an annotation."""
_MOST_BYTES = 500_000
_LEVELS = {
    "fail": "error",
    "incomparable": "error",
    "inconclusive": "warning",
    "improved": "notice",
}


def gate_to_annotations(result: dict[str, Any]) -> str:
    """Return the verdict and the checks that did not pass as workflow commands, one a line.

    Where the whole passes, checks that could not decide are no warning.
    """
    whole = {"metric": "verdict", "verdict": result["verdict"], "why": result["why"]}
    lines = list(_annotations([whole]))
    if result["verdict"] not in ("pass", "improved"):
        for level in ("fail", "inconclusive"):
            checks = [check for check in result["checks"] if check["verdict"] == level]
            lines += _annotations(checks[: _MOST_ANNOTATIONS - 1])
    return "".join(f"{line}\n" for line in lines)


def _annotations(checks: list[dict[str, Any]]) -> Iterator[str]:
    for check in checks:
        level = _LEVELS.get(check["verdict"], "notice")
        title = _property(f"meshscope gate: {check['metric']}")
        yield f"::{level} title={title}::{_data(check['why'])}"


def _data(text: str) -> str:
    """Return text as the message of a command: what would end it or begin another is escaped."""
    return printable(text)[:_LONGEST].replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def step_summary(markdown: str) -> str:
    """Return the Markdown of a gate under a heading, cut to what a page takes."""
    text = f"### meshscope gate\n\n{markdown}\n"
    raw = text.encode("utf-8", errors="replace")
    if len(raw) <= _MOST_BYTES:
        return raw.decode("utf-8")
    kept = raw[:_MOST_BYTES].decode("utf-8", errors="ignore").rpartition("\n")[0]
    return f"{kept}\n\n… cut; `--format json` has all\n"
