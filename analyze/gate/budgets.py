"""Absolute budgets on a diagnosis: pass or fail, with the reason of each.

Of what a budget can bound there are, beside fixed names there are families: ``CLASS_frac`` for each class of the ledger, ``exposed_AXIS_frac``,
``stage_N_peak_memory_frac`` and ``stage_N_peak_memory_bytes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import inf, isnan
from pathlib import Path
from typing import Any

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import Axis

from ..explain.metrics import NO_STEPS
from ..output.document import Block, Lines, Table, facts
from ..output.render import to_markdown as document_to_markdown
from ..output.text.amounts import limits_section
from ..tables.capabilities import CAPABILITIES, Capabilities
from ..tables.classes import (
    CLASSES,
    COMPUTE_CLASSES,
    HOST_CLASSES,
    LEAST_SEPARATED,
    REFINED,
    UNSEPARATED,
    UNSPLIT,
)
from ..tables.results import Diagnosis
from ..tables.toml_file import read_toml
from ..wording.limits import Limit
from ..wording.message import Message, Text, message, message_to_json

METRICS = (
    *("mfu", "bubble_frac", "exposed_comm_frac", "peak_memory_frac"),
    *("straggler_slowdown", "step_time_ns"),
)
"""Those of ``Diagnosis.metrics``."""
MORE_METRICS = ("hfu", "tokens_per_s", "overhead_frac", "peak_memory_bytes")
HIGH_IS_GOOD = frozenset({"mfu", "hfu", "tokens_per_s"})
"""Metrics of which a single number is the least that is allowed."""
Known = tuple[float | None, Text]
"""A number, or None and the reason."""

_CLASSES = {f"{name}_frac": name for name in (*CLASSES, *REFINED)}
_AXES = {f"exposed_{axis.value}_frac": axis.value for axis in Axis}
_STAGE = re.compile(r"stage_(0|[1-9][0-9]{0,4})_peak_memory_(frac|bytes)")
_NOT_TOLD = message("why.capture_lacks_it")


def is_metric(name: str) -> bool:
    """Return whether a budget can bound it."""
    fixed = (*METRICS, *MORE_METRICS, *_CLASSES, *_AXES)
    return name in fixed or _STAGE.fullmatch(name) is not None


def is_share(name: str) -> bool:
    """Return whether it lies between 0 and 1: a bound in percent would hold for ever, or never."""
    return name.endswith("_frac") or name in ("mfu", "hfu")


def like(name: str) -> Message:
    """Return what a name that is no metric may have meant."""
    near = get_close_matches(name, (*METRICS, *MORE_METRICS, *_AXES, *_CLASSES), 1, 0.6)
    if near:
        return message("advice.meant", name=near[0])
    return message("advice.metrics", known=[*METRICS, *MORE_METRICS])


def value_of(result: Diagnosis, name: str) -> Known:
    """Return a metric of a diagnosis, or None and why it is not known."""
    if name in METRICS:
        value, reason = result.metrics.get(name), result.unknown_because.get(name, "")
    elif name in _FIXED:
        value, reason = _FIXED[name](result)
    elif (stage := _STAGE.fullmatch(name)) is not None:
        value, reason = _memory_of_stage(result, int(stage[1]), f"peak_{stage[2]}")
    elif result.ledger.empty:
        value, reason = None, result.unknown_because.get("step_time_ns") or NO_STEPS
    elif name in _AXES:
        value, reason = _exposed(result, _AXES[name])
    else:
        value, reason = _class(result, _CLASSES[name])
    if value is None or isnan(value):
        return None, reason or _NOT_TOLD
    return value, ""


def _hfu(result: Diagnosis) -> Known:
    use = result.utilization
    return use.hfu, use.unknown_because or message("why.no_recomputation")


def _tokens(result: Diagnosis) -> Known:
    return result.utilization.tokens_per_s, message("why.no_tokens_or_ends")


def _overhead(result: Diagnosis) -> Known:
    cost = result.run.get("probe_cost_frac")
    return (cost, "") if isinstance(cost, float) else (None, message("why.no_probe_cost"))


def _peak_bytes(result: Diagnosis) -> Known:
    peaks = result.memory["peak_bytes"].dropna() if len(result.memory) else None
    if peaks is None or peaks.empty:
        return None, message("why.no_device_peak")
    return float(peaks.max()), ""


_FIXED: dict[str, Callable[[Diagnosis], Known]] = {
    "hfu": _hfu,
    "tokens_per_s": _tokens,
    "overhead_frac": _overhead,
    "peak_memory_bytes": _peak_bytes,
}


def _memory_of_stage(result: Diagnosis, stage: int, column: str) -> Known:
    if result.memory.empty:
        return None, message("why.no_memory")
    rows = result.memory[result.memory["stage"] == stage]
    if rows.empty:
        return None, message("why.no_memory_of_stage", stage=stage)
    value = rows[column].iloc[0]
    is_known = rows[column].notna().iloc[0]
    return (
        (float(value), "") if is_known else (None, message("why.no_figure_of_stage", stage=stage))
    )


def _exposed(result: Diagnosis, axis: str) -> Known:
    """Return the wire time of one axis: it is known where that of all is, and the axes are."""
    if (reason := result.unknown_because.get("exposed_comm_frac")) is not None:
        return None, reason
    if result.run.get("tp") is None:
        return None, message("why.no_mesh")
    return _frac(result, f"exposed_{axis}_wire"), ""


def _class(result: Diagnosis, name: str) -> Known:
    """Return the share of one class; none of it is unknown where the capture could not show it."""
    if name.startswith("exposed_") and name.endswith("_wire"):
        return _exposed(result, name.removeprefix("exposed_").removesuffix("_wire"))
    if name.endswith("_wait") and _frac(result, UNSPLIT) >= LEAST_SEPARATED:
        return None, message("why.waits_not_separated")
    if name.endswith("_wait") and result.run.get("tp") is None:
        return None, message("why.no_mesh")
    if name in COMPUTE_CLASSES and _frac(result, UNSEPARATED) >= LEAST_SEPARATED:
        return None, message("why.compute_not_separated")
    value = _frac(result, name)
    needs_name = name in ("recompute", "optimizer", *HOST_CLASSES)
    shown = CAPABILITIES.get(str(result.run.get("origin")), Capabilities())
    if value == 0 and needs_name and not shown.names_host_time:
        return None, message("why.not_named")
    return value, message("why.not_measured")


def _frac(result: Diagnosis, name: str) -> float:
    """Return the share of the step of one class, the mean over ranks and steps; NaN where not known."""
    ledger = result.ledger
    if ledger[name].isna().any():
        return float("nan")
    return float(ledger[name].sum() / ledger["step_ns"].sum())


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
