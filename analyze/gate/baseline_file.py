"""Baseline files: JSON that a reviewer can read, of at most 50 kB."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec

from meshscope.probe.schema.errors import ConfigError

from ..wording.message import Message, message
from .facts import FORMAT, Baseline

MOST_BYTES = 50_000
"""It is committed beside the code: reviewers still see its change."""
_MOST_READ = 16 << 20
"""Far above what is written: a trace given by mistake is not read whole."""
_REMEDY = message("advice.baseline_anew")


def to_json(baseline: Baseline) -> str:
    """Return the text of a baseline file; equal baselines give equal bytes.

    One run a line group, keys in a fixed order. Stages, then the smallest classes, are left out of a
    file that would be longer than ``MOST_BYTES``, and the file says so.

    Raises:
        ConfigError: There are more runs than fit.
    """
    for shorter in (baseline, _without_stages(baseline), _without_classes(baseline)):
        encoded = msgspec.json.encode(msgspec.to_builtins(shorter), order="deterministic")
        text = _compact(msgspec.json.format(encoded, indent=1).decode()) + "\n"
        if len(text.encode()) <= MOST_BYTES:
            return text
    raise ConfigError(
        message("refused.baseline_too_large", runs=len(baseline.runs), most_kb=MOST_BYTES // 1000),
        where="baseline",
        remedy=message("advice.fewer_runs"),
    )


def _without_stages(baseline: Baseline) -> Baseline:
    runs = [msgspec.structs.replace(run, stages_ns={}) for run in baseline.runs]
    limits = [*baseline.limits, "Times by stage are left out: the file would be too large."]
    return msgspec.structs.replace(baseline, runs=runs, limits=limits)


def _without_classes(baseline: Baseline) -> Baseline:
    runs = [msgspec.structs.replace(run, stages_ns={}, classes_ns={}) for run in baseline.runs]
    limits = [*baseline.limits, "Classes of time are left out: the file would be too large."]
    return msgspec.structs.replace(baseline, runs=runs, limits=limits)


def _compact(text: str) -> str:
    """Return JSON with pairs of numbers on one line."""
    return re.sub(r"\[\s+(-?\d+),\s+(-?\d+)\s+\]", r"[\1, \2]", text)


def load_baseline(path: Path) -> Baseline:
    """Return the baseline of a file.

    Raises:
        ConfigError: There is none, it is damaged, or of another format.
    """
    try:
        raw = path.read_bytes() if path.stat().st_size <= _MOST_READ else b""
    except OSError as error:
        raise ConfigError(
            message("refused.baseline_unreadable", error=error.strerror or str(error)),
            where=str(path),
            remedy=_REMEDY,
        ) from error
    try:
        head = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(
            message("refused.no_json", error=str(error)), where=str(path), remedy=_REMEDY
        ) from error
    version = head.get("meshscope_gate_baseline") if isinstance(head, dict) else None
    if version is None:
        raise ConfigError(message("refused.no_baseline"), where=str(path), remedy=_REMEDY)
    if version != FORMAT:
        what = message("refused.baseline_format", found=version, known=FORMAT)
        raise ConfigError(what, where=str(path), remedy=_REMEDY)
    try:
        baseline = msgspec.convert(head, Baseline)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ConfigError(
            message("refused.baseline_damaged", damage=str(error)), where=str(path), remedy=_REMEDY
        ) from error
    _check(baseline, path)
    return baseline


def _check(baseline: Baseline, path: Path) -> None:
    """Refuse numbers that cannot be."""
    wrong: Message | None = None
    if not baseline.runs:
        wrong = message("baseline_damage.no_run")
    for run in baseline.runs:
        times = (run.p50_ns, run.p99_ns, *run.classes_ns.values(), *run.stages_ns.values())
        if not all(math.isfinite(time) and 0 <= time < 1e18 for time in times):
            wrong = message("baseline_damage.impossible_time", run=run.name)
        # A run has all of these, or none: then only counts are compared.
        is_timed = [run.steps > 0, run.p50_ns > 0, run.p99_ns > 0, baseline.window.count > 0]
        if run.steps < 0 or len(set(is_timed)) > 1:
            wrong = message("baseline_damage.no_step_time", run=run.name)
    if any(low < 0 or high < low for low, high in baseline.counts.values()):
        wrong = message("baseline_damage.impossible_count")
    if baseline.window.first < 0 or baseline.window.count < 0:
        wrong = message("baseline_damage.impossible_window")
    if wrong:
        raise ConfigError(
            message("refused.baseline_damaged", damage=wrong), where=str(path), remedy=_REMEDY
        )


def is_baseline(path: Path) -> bool:
    """Return whether a file says that it is a baseline."""
    if not path.is_file() or path.stat().st_size > _MOST_READ:
        return False
    return b'"meshscope_gate_baseline"' in path.read_bytes()
