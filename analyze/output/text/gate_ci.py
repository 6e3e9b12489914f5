"""A gate's result in the forms that CI systems read: GitHub, GitLab, JUnit, OpenMetrics.

Forms and limits: docs.github.com, "Workflow commands for GitHub Actions": ten errors and ten warnings a step are
shown, a summary holds 1 MiB.

Form: docs.gitlab.com, "Code Quality", section on custom tools: a list of description, check_name, fingerprint,
severity and location.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from meshscope.probe.schema.printable import printable

_MOST_ANNOTATIONS = 10
"""Of each level; the first is the verdict."""
_LONGEST = 1000
"""Characters of an annotation."""
_MOST_BYTES = 500_000
"""GitHub refuses a step summary above 1 MiB, and other steps write there too."""
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


def gate_to_junit(result: dict[str, Any]) -> str:
    """Return the JSON form of a gate as JUnit XML: one test a check, and one for the whole.

    What cannot be known is skipped there; a gate that cannot tell as a whole is an error.
    """
    suite = ElementTree.Element("testsuite", name="meshscope gate")
    whole = {"metric": "verdict", "verdict": result["verdict"], "why": result["why"]}
    counts = dict.fromkeys(("failure", "error", "skipped"), 0)
    for check in (whole, *result["checks"]):
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=check["metric"])
        kind = {"fail": "failure", "inconclusive": "skipped", "incomparable": "error"}.get(
            check["verdict"]
        )
        if check is whole and kind == "skipped":
            kind = "error"
        why = printable(check["why"])
        if kind is None:
            ElementTree.SubElement(case, "system-out").text = why
            continue
        ElementTree.SubElement(case, kind, message=why)
        counts[kind] += 1
    suite.set("tests", str(len(result["checks"]) + 1))
    suite.set("failures", str(counts["failure"]))
    suite.set("errors", str(counts["error"]))
    suite.set("skipped", str(counts["skipped"]))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


_SEVERITIES = {"fail": "major", "incomparable": "major", "inconclusive": "minor"}
_MOST = 200
"""A report of more is not read; the JSON has all."""


def gate_to_gitlab(result: dict[str, Any], source: Path) -> str:
    """Return the checks that did not pass as issues; none where the whole passes.

    Args:
        result: The JSON form of a gate.
        source: The file of the baseline or budget, at which GitLab shows them.
    """
    checks = [check for check in result["checks"] if check["verdict"] == "fail"]
    if result["verdict"] in ("inconclusive", "incomparable"):
        whole = {"metric": "verdict", "verdict": result["verdict"], "why": result["why"]}
        undecided = [check for check in result["checks"] if check["verdict"] == "inconclusive"]
        checks = [whole, *checks, *undecided]
    issues = [_issue(check, source) for check in checks[:_MOST]]
    return json.dumps(issues, indent=2) + "\n"


def _issue(check: dict[str, Any], source: Path) -> dict[str, Any]:
    name = printable(str(check["metric"]))
    return {
        "description": f"{name}: {printable(check['why'])}",
        "check_name": f"meshscope-gate/{name}",
        # The same check stays the same issue when its numbers move.
        "fingerprint": hashlib.sha256(f"meshscope gate {name}".encode()).hexdigest(),
        "severity": _SEVERITIES[check["verdict"]],
        "location": {"path": printable(source.as_posix()), "lines": {"begin": 1}},
    }


_VERDICTS = ("pass", "fail", "improved", "inconclusive", "incomparable")
_GAUGES = {
    "ratio": "Candidate over baseline.",
    "low": "Lower bound of the ratio.",
    "high": "Upper bound of the ratio.",
    "before": "The baseline: times in nanoseconds, counts per step.",
    "after": "The candidate, in the same unit.",
}


def gate_to_openmetrics(result: dict[str, Any]) -> str:
    """Return verdicts as state sets and figures as gauges; what is not known has no sample."""
    return "\n".join([*_verdicts(result), *_figures(result["checks"]), "# EOF", ""])


def _verdicts(result: dict[str, Any]) -> Iterator[str]:
    name = "meshscope_gate_verdict"
    yield f"# TYPE {name} stateset"
    yield f"# HELP {name} Verdict of a check; of the whole gate where metric is verdict."
    whole = {"metric": "verdict", "verdict": result["verdict"]}
    for check in (whole, *result["checks"]):
        for verdict in _VERDICTS:
            is_it = int(check["verdict"] == verdict)
            yield f'{name}{{metric="{_label(check["metric"])}",{name}="{verdict}"}} {is_it}'


def _figures(checks: list[dict[str, Any]]) -> Iterator[str]:
    for key, meaning in _GAUGES.items():
        known = [check for check in checks if _is_number(check.get(key))]
        if known:
            name = f"meshscope_gate_{key}"
            yield f"# TYPE {name} gauge"
            yield f"# HELP {name} {meaning}"
            yield from (
                f'{name}{{metric="{_label(check["metric"])}"}} {float(check[key])!r}'
                for check in known
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _label(text: object) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
