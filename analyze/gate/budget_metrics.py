"""What a budget can bound, and its value in a diagnosis or why that is not known.

Beside fixed names there are families: ``CLASS_frac`` for each class of the ledger, ``exposed_AXIS_frac``,
``stage_N_peak_memory_frac`` and ``stage_N_peak_memory_bytes``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from math import isnan

from meshscope.probe.schema.terms import Axis

from ..explain.metrics import NO_STEPS
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
from ..wording.message import Message, Text, message

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
