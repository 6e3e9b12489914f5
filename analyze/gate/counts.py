"""What a run does in a step, counted: it has no noise, so one run is enough to see a change, exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import KernelCategory

from ..account.kernels.coverage import common_kernel_steps
from ..explain.run_account import Account
from .facts import Baseline, Count
from .results import Check, Reason, Verdict

_PASSES = ("forward", "backward", "backward_input", "backward_weight", "recompute", "optimizer")


def counts_of(account: Account) -> dict[str, int]:
    """Return counts and bytes per step over all ranks, the median over the analysed steps.

    Names: ``collectives.AXIS.KIND``, ``p2p.AXIS.send``, ``bytes.AXIS.KIND``, ``passes.KIND``,
    ``kernels``. Empty where the capture holds no single operations.
    """
    found = {**dict(_communication(account)), **dict(_passes(account)), **dict(_kernels(account))}
    return {name: value for name, value in sorted(found.items()) if value > 0}


def collectives_by_rank(account: Account, axis: str) -> pd.DataFrame:
    """Return rank, kind and count: collectives of one axis in a step of a rank, the median over steps."""
    frame = account.events.frame
    own = frame[~frame["is_p2p"] & (frame["axis"].astype(str) == axis) & ~frame["is_inferred"]]
    own = own.assign(kind=own["kind"].astype(str))
    steps = pd.Index(account.windows.steps, name="step")
    rows = []
    for (rank, kind), part in own.groupby(["rank", "kind"]):
        by_step = part.groupby("step").size().reindex(steps, fill_value=0)
        rows.append({"rank": rank, "kind": kind, "count": int(by_step.median())})
    return pd.DataFrame(rows, columns=["rank", "kind", "count"])


def _communication(account: Account) -> Iterator[tuple[str, int]]:
    frame = account.events.frame
    frame = frame[~frame["is_inferred"]]
    if frame.empty:
        return
    is_p2p, is_send = frame["is_p2p"].to_numpy(bool), frame["is_send"].to_numpy(bool)
    frame = frame[~is_p2p | is_send]
    is_p2p = frame["is_p2p"].to_numpy(bool)
    axis = frame["axis"].astype(str).to_numpy(object)
    kind = np.where(is_p2p, "send", frame["kind"].astype(str).to_numpy(object))
    place = pd.Series(axis + "." + kind, frame.index)
    family = place.where(~is_p2p, "p2p." + place).where(is_p2p, "collectives." + place)
    yield from _by_step(account, frame, family, None)
    yield from _by_step(account, frame, "bytes." + place, "size_bytes")


def _passes(account: Account) -> Iterator[tuple[str, int]]:
    span = account.windows.select(account.trace.frame("span"))
    kind = span["kind"].astype(str)
    span = span[kind.isin(_PASSES)]
    # The loss of a microbatch may have a span of its own: it is part of the same forward.
    pass_of = ["rank", "step", "kind", "stage", "chunk", "microbatch"]
    span = span[(span["microbatch"] < 0) | ~span.duplicated(pass_of)]
    if len(span):
        yield from _by_step(account, span, "passes." + span["kind"].astype(str), None)


def _kernels(account: Account) -> Iterator[tuple[str, int]]:
    """Yield the kernel launches of a step: rank by rank, as those of all may not fit in memory."""
    trace, windows = account.trace, account.windows
    if not trace.row_count("kernel"):
        return
    common = common_kernel_steps(trace, windows.ranks)
    steps = windows.steps if common is None else np.intersect1d(windows.steps, common)
    total = np.zeros(len(steps), np.int64)
    for rank in windows.ranks.tolist():
        kernel = windows.select(
            trace.rank_frame("kernel", rank, ["rank", "step", "category", "start_ns", "dur_ns"])
        )
        kernel = kernel[kernel["category"] != KernelCategory.SYNC.value]
        total += kernel.groupby("step").size().reindex(steps, fill_value=0).to_numpy(np.int64)
    if len(total):
        yield "kernels", int(np.median(total))


def _by_step(
    account: Account, frame: pd.DataFrame, name: pd.Series, column: str | None
) -> Iterator[tuple[str, int]]:
    steps = account.windows.steps
    keys = [name, frame["step"]]
    each = pd.Series(1.0, frame.index)
    if column is not None:
        each = frame[column].astype("float64").fillna(0.0)
    sums = each.groupby(keys, observed=True).sum()
    table = sums.unstack(fill_value=0).reindex(columns=steps, fill_value=0)
    for key, value in table.median(axis=1).items():
        yield str(key), round(float(value))


PREFIX = "count."


def count_checks(baseline: Baseline, counts: Mapping[str, Count]) -> tuple[Check, ...]:
    """Return one check a count; none where a side has no counts."""
    if not baseline.counts or not counts:
        return ()
    return tuple(_checks(baseline.counts, counts))


def _checks(base: Mapping[str, Count], counts: Mapping[str, Count]) -> Iterator[Check]:
    for name in sorted({*base, *counts}):
        before, after = base.get(name, (0, 0)), counts.get(name, (0, 0))
        verdict, reason = _judge(name, before, after)
        yield Check(
            metric=PREFIX + name,
            verdict=verdict,
            reason=reason,
            ratio=after[1] / before[1] if before[1] else None,
            low=after[0] / before[1] if before[1] else None,
            high=after[1] / before[0] if before[0] else None,
            before=before[1],
            after=after[1] if after[1] > before[1] else after[0],
            margin_frac=0.0,
        )


def _judge(name: str, before: Count, after: Count) -> tuple[Verdict, Reason]:
    """Return the verdict on one count.

    A count that the baseline has a range of passes within it, and decides nothing beyond. Fewer passes
    are no gain but other work; fewer operations are one.
    """
    if before[0] <= after[0] and after[1] <= before[1]:
        return Verdict.PASS, Reason.EQUAL
    if before[0] != before[1] or after[0] != after[1]:
        return Verdict.INCONCLUSIVE, Reason.VARIES
    if after[0] > before[0]:
        return Verdict.FAIL, Reason.MORE
    return (Verdict.FAIL if name.startswith("passes.") else Verdict.IMPROVED), Reason.FEWER
