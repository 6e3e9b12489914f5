"""A gate's result as OpenMetrics text, for a dashboard over time (specification: version 1.0)."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

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
