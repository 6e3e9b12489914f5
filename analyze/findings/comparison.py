"""Two runs side by side: by how much the step became longer, and in what.

The change of the step time is the sum of the changes of the classes of the waterfall. What
devices worked on is compared by operator and by kernel besides, each change split in two::

    change = more calls x time of a call before + calls after x longer calls
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ..account.kernels.coverage import common_kernel_steps, has_kernels
from ..account.kernels.operators import operator_sums
from ..align.steps.windows import StepWindows
from ..explain.run_account import Account
from ..explain.whatif.predict import t_95
from ..tables.classes import CLASSES, REFINED
from ..tables.results import Diagnosis, Finding
from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import Message, message
from ..wording.words import is_missing
from .diagnosis import diagnosis_of

OUTSIDE = "not_in_step"
"""What the step lasts longer than its ranks are in it on average."""
_TOLD_APART = frozenset({"useful", "contention", *REFINED})
"""Bars that one capture tells apart and another leaves in the classes of compute."""
_LEAST_NS = 0.5
_SETUP = (
    *("world_size", "captured_ranks", "tp", "pp", "dp", "cp", "ep", "vpp", "schedule"),
    *("microbatches", "tokens_per_step", "num_layers", "hidden_size", "ffn_size", "num_heads"),
    *("seq_len", "vocab_size", "parameters", "device_name", "origin", "capture_level"),
)
"""What of the runs should be equal, or else is the change that is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs, reduced to what is compared."""

    diagnosis: Diagnosis
    by_step: pd.DataFrame
    """rank, step, step_ns and the classes of the ledger, before clock and memory are taken out."""
    operators: pd.DataFrame
    """operator, shapes, calls, total_ns, per rank and step; empty without kernels."""
    kernels: pd.DataFrame
    """name, category, calls, total_ns, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The change from one run to the other; times are per step."""

    before: Side
    after: Side
    classes: pd.DataFrame
    """class, before_ns, after_ns, change_ns (which sum to the change of the step time) and error_ns,
    the half width of the 95 % interval of the change by chance of the steps; NaN is not known."""
    error_ns: float
    """The same for the step time."""
    operators: pd.DataFrame
    """operator, shapes, calls_before, before_ns, calls_after, after_ns, change_ns, more_ns (more
    calls), longer_ns (longer ones); largest change first; empty where a run has no kernels."""
    kernels: pd.DataFrame
    """name, category, and the same."""
    setup: Mapping[str, tuple[Any, Any]]
    """What differs in the setup of the runs: name, before and after."""
    limits: tuple[Limit, ...]

    @property
    def change_ns(self) -> float:
        """Return by how much the step became longer."""
        return self.after.diagnosis.step_time_ns - self.before.diagnosis.step_time_ns


_OF_THE_RECORDING = ("captured_ranks", "origin", "capture_level")
"""What may differ between two recordings of like jobs."""


def unlike(setup: Mapping[str, Mapping[str, object]]) -> Message | None:
    """Return that two jobs are not alike, and in what; None where all that is known of both is.

    Args:
        setup: What differs: name, and its value ``before`` and ``after``, None where it is not known.
    """
    differs = [
        name.replace("_", " ")
        for name, pair in setup.items()
        if name not in _OF_THE_RECORDING and None not in (pair["before"], pair["after"])
    ]
    return message("comparison.unlike", differs=differs) if differs else None


def side_of_account(account: Account) -> Side:
    """Return one run, already measured, reduced to what is compared."""
    trace, windows = account.trace, account.windows
    common = common_kernel_steps(trace, windows.ranks)
    count = int(has_kernels(trace, windows.frame["step"], common).sum())
    operators = kernels = pd.DataFrame()
    if count:
        operators = _per_step(operator_sums(trace, windows), count)
        kernels = _per_step(_kernel_sums(trace, windows), count)
    return Side(
        diagnosis=diagnosis_of(account),
        by_step=account.ledger.by_step,
        operators=operators,
        kernels=kernels,
    )


def compare(before: Side, after: Side) -> Comparison:
    """Return what changed from one run to the other."""
    ledgers = before.by_step, after.by_step
    return Comparison(
        before=before,
        after=after,
        classes=_classes(before, after),
        error_ns=_error_ns(*(_by_step(ledger, "step_ns") for ledger in ledgers)),
        operators=_changes(before.operators, after.operators, ["operator", "shapes"]),
        kernels=_changes(before.kernels, after.kernels, ["name", "category"]),
        setup=_differences(before.diagnosis.run, after.diagnosis.run),
        limits=tuple(_limits(before, after)),
    )


def finding_key(finding: Finding) -> tuple[str, str]:
    """Return what findings about the same thing share: kind, cause and place, but not the steps."""
    place = {key: value for key, value in finding.where.items() if key != "steps"}
    return finding.kind.value, str([finding.cause, *sorted(place.items())])


def _classes(before: Side, after: Side) -> pd.DataFrame:
    is_alike = _separated(before) == _separated(after)
    first, second = (_bars(side, as_shown=is_alike) for side in (before, after))
    ledgers = [side.diagnosis.ledger if is_alike else side.by_step for side in (before, after)]
    rows = [
        {
            "class": name,
            "before_ns": first.get(name, 0.0),
            "after_ns": second.get(name, 0.0),
            "change_ns": second.get(name, 0.0) - first.get(name, 0.0),
            "error_ns": _error_ns(*(_by_step(ledger, name) for ledger in ledgers)),
        }
        for name in _in_order(first, second)
    ]
    return pd.DataFrame(rows)


def _separated(side: Side) -> frozenset[str]:
    return _TOLD_APART & {bar.name for bar in side.diagnosis.waterfall}


def _bars(side: Side, *, as_shown: bool) -> dict[str, float]:
    """Return classes in ns that sum to the step time: as in the waterfall, or those of the ledger."""
    result = side.diagnosis
    bars = {bar.name: bar.dur_ns for bar in result.waterfall}
    mean_ns = sum(bars.values())
    if not as_shown:
        shares = side.by_step[list(CLASSES)].sum() / side.by_step["step_ns"].sum()
        bars = {str(name): float(share) * mean_ns for name, share in shares.items() if share > 0}
    outside_ns = result.step_time_ns - mean_ns
    return bars | ({OUTSIDE: outside_ns} if abs(outside_ns) > _LEAST_NS else {})


def _in_order(first: dict[str, float], second: dict[str, float]) -> list[str]:
    """Return the names of both in the order of the waterfall."""
    names = list(dict.fromkeys([*first, *second]))
    place = {name: at for at, name in enumerate((*CLASSES, OUTSIDE))}
    return sorted(names, key=lambda name: place.get(name, -1))


def _by_step(ledger: pd.DataFrame, name: str) -> np.ndarray:
    """Return a class by step, the mean over the ranks; nothing where the ledger has it not."""
    if name not in ledger:
        return np.empty(0)
    return ledger.groupby("step")[name].mean().to_numpy(np.float64)


def _error_ns(before: np.ndarray, after: np.ndarray) -> float:
    """Return the half width of the 95 % interval of a difference of means (Welch)."""
    if min(len(before), len(after)) < 2:
        return float("nan")
    parts = [values.var(ddof=1) / len(values) for values in (before, after)]
    if not sum(parts) > 0:
        return float(sum(parts))
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, (before, after), strict=True)
    )
    return float(t_95(max(1, int(freedom))) * np.sqrt(sum(parts)))


def _per_step(sums: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return sums over ranks and steps as means over them; ``count`` is how many there are."""
    return sums.assign(calls=sums["calls"] / count, total_ns=sums["total_ns"] / count)


def _kernel_sums(trace: Trace, windows: StepWindows) -> pd.DataFrame:
    """Return name, category, calls and total_ns of the kernels of the analysed steps."""
    parts = []
    columns = ["rank", "step", "name_id", "category", "start_ns", "dur_ns"]
    for rank in trace.ranks:
        kernel = windows.select(trace.rank_frame("kernel", rank, columns))
        kernel = kernel[kernel["category"] != KernelCategory.SYNC.value]
        names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
        rows = kernel.assign(
            name=kernel["name_id"].map(names), category=kernel["category"].astype(str)
        )
        grouped = rows.groupby(["name", "category"], as_index=False)["dur_ns"]
        parts.append(grouped.agg(calls="size", total_ns="sum"))
    joined = pd.concat(parts)
    sums: pd.DataFrame = joined.groupby(["name", "category"], as_index=False)[
        ["calls", "total_ns"]
    ].sum()
    return sums


def _changes(before: pd.DataFrame, after: pd.DataFrame, key: list[str]) -> pd.DataFrame:
    """Return what changed by key; the two parts of a change sum to it."""
    if before.empty or after.empty:
        return pd.DataFrame(columns=[*key, "change_ns"])
    used = [*key, "calls", "total_ns"]
    both = before[used].merge(after[used], on=key, how="outer", suffixes=("_before", "_after"))
    both = both.fillna(0.0).rename(
        columns={"total_ns_before": "before_ns", "total_ns_after": "after_ns"}
    )
    change = both["after_ns"] - both["before_ns"]
    # What is new, or is gone, has no calls to compare the length of.
    in_both = (both["calls_before"] > 0) & (both["calls_after"] > 0)
    each = both["before_ns"] / both["calls_before"].where(in_both)
    more = ((both["calls_after"] - both["calls_before"]) * each).where(in_both, change)
    table = both.assign(change_ns=change, more_ns=more, longer_ns=change - more)
    order = change.abs().sort_values(ascending=False, kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _differences(
    before: Mapping[str, object], after: Mapping[str, object]
) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (before.get(name), after.get(name)) for name in _SETUP}
    known = {
        name: tuple(None if is_missing(value) else value for value in pair)
        for name, pair in pairs.items()
    }
    return {name: (first, second) for name, (first, second) in known.items() if first != second}


def _limits(before: Side, after: Side) -> Iterator[Limit]:
    if before.diagnosis.run.get("origin") != after.diagnosis.run.get("origin"):
        yield message("doubt.different_tools")
    missing = _separated(before) ^ _separated(after)
    if missing:
        names = [name.replace("_", " ") for name in sorted(missing)]
        yield message("scope.compute_as_a_whole", classes=names)
    empty = [name for name, side in (("before", before), ("after", after)) if side.kernels.empty]
    if empty:
        yield message("unknown.changed_kernels", runs=empty)
    if min(len(side.by_step["step"].unique()) for side in (before, after)) < 2:
        yield message("unknown.chance_of_one_step")
    else:
        yield message("scope.intervals_of_captures")
