"""Devices that idle without waiting for a peer, by what their hosts did meanwhile.

The causes are those of ``kernels.idle_causes``, an exact partition of the idle time, so the costs of
these findings add up to what the ledger could not attribute.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshscope.probe.schema.terms import FindingKind, KernelCategory

from ...account.kernels.coverage import common_kernel_steps, has_kernels
from ...account.kernels.idle_report import IdleReport, idle_report
from ...explain.run_account import Account
from ...tables.classes import STALLS
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, Text, message
from .grading import MIN_COST, severity
from .host import MIN_STALL
from .idle_words import IDLE_WORDS, REMAINDER_WORDS, SHOWN, UNKNOWN_WORDS, IdleWords, evidence_of

MIN_IDLE = 0.25
"""Share of the step from which an idle device is worth a finding, whatever the host did."""
MIN_NAMED = 0.05
"""Share of the step from which idle time is divided into causes, and below ``MIN_IDLE`` each is worth one."""


def idle_devices(account: Account) -> Iterator[Finding]:
    """A device that idles most of the time although nobody makes it wait.

    A trace without a compute kernel (of communication only, say) tells nothing of idling.
    """
    trace = account.trace
    if not trace.row_count("kernel"):
        return
    common = common_kernel_steps(trace, account.windows.ranks)
    by_step = account.ledger.by_step
    traced = by_step[has_kernels(trace, by_step["step"], common)]
    if traced.empty:
        return
    cost = float(traced["unattributed"].sum() / traced["step_ns"].sum())
    if cost < MIN_NAMED or not any(_has_compute(trace, rank) for rank in trace.ranks):
        return
    where = () if common is None else (_traced(common.tolist()),)
    report = idle_report(trace, account.windows, common, STALLS)
    if report is None:
        if cost >= MIN_IDLE:
            evidence = (message("idle.unknown_meaning"), *where)
            yield _finding(FindingKind.HOST_STALL, UNKNOWN_WORDS, "unknown", cost, evidence)
        return
    yield from _by_cause(report, cost, where)


def _by_cause(report: IdleReport, cost: float, where: tuple[Text, ...]) -> Iterator[Finding]:
    """Yield a finding for each cause that is worth one, and one for all others together."""
    total = sum(report.frac.values())
    scale = min(1.0, cost / total) if total else 0.0
    share = {cause: frac * scale for cause, frac in report.frac.items()}
    rest = max(0.0, cost - sum(share.values()))
    most = max(share, key=lambda cause: share[cause])
    least = MIN_STALL if cost >= MIN_IDLE else MIN_NAMED
    for cause, frac in share.items():
        if frac < least:
            rest += frac
            continue
        words = IDLE_WORDS[cause]
        longest = (report.longest_call,) if cause == most and report.longest_call else ()
        evidence = (*evidence_of(report, cause), *longest, *where)
        yield _finding(words.kind, words, cause, frac, evidence)
    if rest >= MIN_COST:
        small = [
            message("idle.small_cause", cause=name, share=frac)
            for name, frac in share.items()
            if SHOWN <= frac < least
        ]
        below = (message("idle.small_causes", least=least, causes=small),) if small else ()
        evidence = (*below, *where)
        yield _finding(FindingKind.HOST_STALL, REMAINDER_WORDS, "remainder", rest, evidence)


def _finding(
    kind: FindingKind, words: IdleWords, cause: str, cost: float, evidence: tuple[Text, ...]
) -> Finding:
    return Finding(
        kind=kind,
        severity=severity(cost),
        where={},
        claim=words.claim(cost),
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=words.confidence,
        evidence=evidence,
        remedy=words.remedy,
        cause=cause,
    )


def _traced(steps: list[int]) -> Message:
    """Return in which steps the devices were seen."""
    runs = np.split(np.array(steps), np.flatnonzero(np.diff(steps) > 1) + 1)
    return message("idle.traced", steps=[(int(run[0]), int(run[-1])) for run in runs])


def _has_compute(trace: Trace, rank: int) -> bool:
    category = trace.rank_frame("kernel", rank, ["category"])["category"]
    return bool((category == KernelCategory.COMPUTE).any())
