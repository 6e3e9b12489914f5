"""Absolute budgets on a diagnosis: pass or fail, with the reason of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from meshscope.probe.schema.errors import ConfigError

from ..output.document import Block, Lines, Table, facts
from ..output.render import to_markdown as document_to_markdown
from ..output.text.amounts import limits_section
from ..tables.results import Diagnosis
from ..tables.toml_file import read_toml
from ..wording.limits import Limit
from ..wording.message import Text, message, message_to_json
from .budget_metrics import HIGH_IS_GOOD, is_metric, is_share, like, value_of

_LARGEST = 1e18
"""Bounds beyond it, such as infinity, would hold for ever, or never: as nanoseconds it is 32 years."""
_WHOLE = 1e6
"""From here on six digits would round a whole number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The bounds of one metric; at least one is given."""

    metric: str
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One check: its bound, what was measured, and whether it holds."""

    budget: Budget
    value: float | None
    passed: bool | None
    """None where the metric could not be known."""
    unknown_because: Text = ""
    """Why it could not; empty where it is known."""

    def sentence(self) -> str:
        """Return the check in words."""
        bounds = [
            f"{word} {_amount(bound)}"
            for word, bound in (("at least", self.budget.min), ("at most", self.budget.max))
            if bound is not None
        ]
        wanted = f"must be {' and '.join(bounds)}"
        if self.value is None:
            return f"UNKNOWN  {self.budget.metric} ({wanted}): {self.unknown_because}"
        word = "pass" if self.passed else "FAIL"
        return f"{word:<8} {self.budget.metric} = {_amount(self.value)} ({wanted})"


def load_budgets(path: Path) -> tuple[Budget, ...]:
    """Read ``[budget]`` of a TOML file: ``mfu = { min = 0.42 }``.

    Raises:
        ConfigError: No such file, no TOML, an unknown metric, or no bound.
    """
    content, _ = read_toml(path)
    table = content.get("budget")
    if not isinstance(table, dict) or not table:
        raise ConfigError(
            message("refused.empty_budget") if table == {} else message("refused.no_budget"),
            where=str(path),
            remedy=message("advice.budget", example="mfu = { min = 0.4 }"),
        )
    return tuple(_budget(f"{path}: budget.{name}", name, bounds) for name, bounds in table.items())


def bounded(name: str, bound: float | Mapping[str, float]) -> Budget:
    """Return the budget of one metric from min and max, or from one number.

    Raises:
        ConfigError: There is no such metric, or the bound means nothing.
    """
    if not isinstance(bound, Mapping):
        bound = {"min" if name in HIGH_IS_GOOD else "max": bound}
    return _budget(f"budget {name}", name, dict(bound))


def _budget(where: str, name: str, bounds: object) -> Budget:
    if not is_metric(name):
        raise ConfigError(message("refused.metric"), where=where, remedy=like(name))
    if not isinstance(bounds, dict) or not bounds or set(bounds) - {"min", "max"}:
        # A time in ns, or a share of 1.
        example = 250_000_000 if name.endswith("_ns") else 0.1
        raise ConfigError(
            message("refused.no_bound"),
            where=where,
            remedy=message("advice.bound", example=f"{name} = {{ max = {example} }}"),
        )
    for key, value in bounds.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise ConfigError(message("refused.no_number", key=key), where=where)
        if not is_share(name) and abs(value) > _LARGEST:
            raise ConfigError(
                message("refused.bounds_nothing", key=key, value=_short(value)),
                where=where,
                remedy=message("advice.real_bound", key=key),
            )
        if is_share(name) and not 0 <= value <= 1:
            raise ConfigError(
                message("refused.no_share", key=key, value=_short(value)),
                where=where,
                remedy=message("advice.share", key=key),
            )
    low, high = bounds.get("min"), bounds.get("max")
    if low is not None and high is not None and low > high:
        raise ConfigError(message("refused.min_above_max"), where=where)
    return Budget(metric=name, min=low, max=high)


def check(result: Diagnosis, budgets: tuple[Budget, ...]) -> tuple[Verdict, ...]:
    """Return the verdict of every budget, in their order."""
    return tuple(_check(budget, result) for budget in budgets)


def _check(budget: Budget, result: Diagnosis) -> Verdict:
    value, reason = value_of(result, budget.metric)
    if value is None:
        return Verdict(budget=budget, value=None, passed=None, unknown_because=reason)
    below = budget.min is not None and value < budget.min
    above = budget.max is not None and value > budget.max
    return Verdict(budget=budget, value=value, passed=not (below or above))


def exit_code(verdicts: tuple[Verdict, ...]) -> int:
    """Return 1 if a budget is broken, else 2 if one could not be checked, else 0."""
    if any(verdict.passed is False for verdict in verdicts):
        return 1
    return 2 if any(verdict.passed is None for verdict in verdicts) else 0


def to_rows(verdicts: tuple[Verdict, ...]) -> list[dict[str, object]]:
    """Return the JSON form: metric, min, max, value, passed (null: unknown), and why unknown."""
    return [
        {
            "metric": verdict.budget.metric,
            "min": verdict.budget.min,
            "max": verdict.budget.max,
            "value": verdict.value,
            "passed": verdict.passed,
            "unknown_because": str(verdict.unknown_because),
            "messages": {"unknown_because": message_to_json(verdict.unknown_because)},
        }
        for verdict in verdicts
    ]


_WORDS = {True: "pass", False: "fail", None: "inconclusive"}
_OF_CODE = {0: True, 1: False, 2: None}


def to_gate(verdicts: tuple[Verdict, ...]) -> dict[str, Any]:
    """Return verdict, why and checks as a gate against a baseline has them, for reports of CI systems."""
    checks = [
        {
            "metric": verdict.budget.metric,
            "verdict": _WORDS[verdict.passed],
            "why": verdict.sentence(),
            "after": verdict.value,
        }
        for verdict in verdicts
    ]
    word = _WORDS[_OF_CODE[exit_code(verdicts)]]
    decisive = [str(check["why"]) for check in checks if check["verdict"] == word]
    return {"verdict": word, "why": decisive[0] if decisive else word, "checks": checks}


def budgets_document(verdicts: tuple[Verdict, ...], limits: Sequence[Limit]) -> list[Block]:
    """Return the checks, one a line, then what the capture could not show: some of it is lost."""
    sentences = Lines([verdict.sentence() for verdict in verdicts])
    return [sentences, *limits_section(limits)]


def to_markdown(verdicts: tuple[Verdict, ...], limits: Sequence[Limit] = ()) -> str:
    """Return the checks as a table, for a comment on a change; reasons and limits below it."""
    words = {True: "pass", False: "**FAIL**", None: "unknown"}
    rows = [
        (
            verdict.budget.metric,
            *map(_cell, (verdict.budget.min, verdict.budget.max, verdict.value)),
            words[verdict.passed],
        )
        for verdict in verdicts
    ]
    reasons = [
        f"{verdict.budget.metric} is unknown: {verdict.unknown_because}"
        for verdict in verdicts
        if verdict.passed is None
    ]
    table = Table(("metric", "at least", "at most", "measured", "verdict"), rows)
    below = [facts(reasons)] if reasons else []
    return document_to_markdown([table, *below, *limits_section(limits)])


def _short(value: float) -> str:
    """Return a bound as it may be written: an integer of a TOML file may be larger than any float."""
    try:
        return f"{value:g}"
    except OverflowError:
        return "an integer of more than 308 digits"


def _cell(value: float | None) -> str:
    return "–" if value is None else _amount(value)


def _amount(value: float) -> str:
    """Return a number of six digits; nanoseconds, which have more, in full."""
    return f"{value:.0f}" if _WHOLE <= abs(value) < inf else f"{value:.6g}"
