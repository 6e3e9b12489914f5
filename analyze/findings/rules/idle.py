"""Devices that idle without waiting for a peer, by what their hosts did meanwhile.

The causes are those of ``kernels.idle``, an exact partition of the idle time, so the costs of
these findings add up to what the ledger could not attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind, KernelCategory, Severity

from ...account.kernels.coverage import common_kernel_steps, has_kernels
from ...account.kernels.idle import (
    ALLOCATOR,
    DEVICE_WAIT,
    KERNEL_GAP,
    LAUNCH_LATENCY,
    LAUNCHING,
    LONG_CALL,
    LONG_OPERATOR,
    NOTHING,
    SYNCHRONISE,
)
from ...account.kernels.idle_report import IdleReport, called, idle_report
from ...explain.run_account import Account
from ...tables.classes import STALLS
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from .bad_steps import bad_steps
from .grading import MIN_COST, severity
from .host import MIN_STALL

SHOWN = 0.0005
"""The least share that is not 0.0 % in a sentence."""


class IdleWords(NamedTuple):
    """The sentences of one cause."""

    kind: FindingKind
    claim: Callable[[float], Message]
    """Of its share of the step."""
    remedy: Message
    meaning: Message | None = None
    """When idle time counts as this cause."""
    confidence: float = 0.8


IDLE_WORDS = {
    ALLOCATOR: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.allocator", share=share),
        message("idle.allocator_remedy"),
        message("idle.allocator_meaning"),
    ),
    SYNCHRONISE: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.synchronise", share=share),
        message("idle.synchronise_remedy"),
        message("idle.synchronise_meaning"),
    ),
    LONG_CALL: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.long_call", share=share),
        message("idle.long_call_remedy"),
        message("idle.long_call_meaning"),
    ),
    DEVICE_WAIT: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.device_wait", share=share),
        message("idle.device_wait_remedy"),
        message("idle.device_wait_meaning"),
    ),
    LAUNCH_LATENCY: IdleWords(
        FindingKind.LAUNCH_BOUND,
        lambda share: message("idle.launch_latency", share=share),
        message("idle.launch_latency_remedy"),
        message("idle.launch_latency_meaning"),
    ),
    KERNEL_GAP: IdleWords(
        FindingKind.LAUNCH_BOUND,
        lambda share: message("idle.kernel_gap", share=share),
        message("idle.kernel_gap_remedy"),
        message("idle.kernel_gap_meaning"),
    ),
    LONG_OPERATOR: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.long_operator", share=share),
        message("idle.long_operator_remedy"),
        message("idle.long_operator_meaning"),
    ),
    LAUNCHING: IdleWords(
        FindingKind.LAUNCH_BOUND,
        lambda share: message("idle.launching", share=share),
        message("idle.launching_remedy"),
        message("idle.launching_meaning"),
        confidence=0.6,
    ),
    NOTHING: IdleWords(
        FindingKind.HOST_STALL,
        lambda share: message("idle.nothing", share=share),
        message("idle.nothing_remedy"),
        message("idle.nothing_meaning"),
    ),
}
_OF_COMPILER = (
    r"^(?:triton_[a-z]{2,9}_fused_|Torch-Compiled Region|## Call CompiledFxGraph|CompiledFunction)"
)
"""How kernels, operators and annotations of torch.compile begin."""
_COMPILED_REMEDIES = {
    LAUNCH_LATENCY: message("idle.launch_latency_compiled"),
    KERNEL_GAP: message("idle.kernel_gap_compiled"),
    LAUNCHING: message("idle.launching_compiled"),
}
"""Advice for a program that is compiled already."""
UNKNOWN_WORDS = IdleWords(
    FindingKind.HOST_STALL,
    lambda share: message("idle.unknown", share=share),
    message("idle.unknown_remedy"),
    confidence=0.6,
)
REMAINDER_WORDS = IdleWords(
    FindingKind.HOST_STALL,
    lambda share: message("idle.remainder", share=share),
    message("idle.remainder_remedy"),
    confidence=0.6,
)


def evidence_of(report: IdleReport, cause: str) -> Iterator[Message]:
    """Yield what was measured of one cause, numbers first."""
    if len(report.by_rank) > 1:
        yield _by_rank(report.by_rank[cause].sort_values())
    meaning = IDLE_WORDS[cause].meaning
    if meaning is not None:
        yield meaning
    top = report.blockers[report.blockers["cause"] == cause].head(3)
    rows: Any = top.to_dict("records")
    for row in rows:
        yield message(
            "idle.blocker",
            call=called(row["name"], row["inside"]),
            share=row["idle_ns"] / report.time_ns,
            calls=row["calls"],
            most_ns=row["most_ns"],
            rank=row["rank"],
        )
    if cause == SYNCHRONISE and report.waits is not None:
        yield report.waits
    yield from report.notes.get(cause, ())


def _by_rank(share: pd.Series[float]) -> Message:
    """Return the least and the most of a rising series by rank, of two ranks or more."""
    (least, least_rank), (most, most_rank) = (
        (float(share.iloc[at]), int(share.index[at])) for at in (0, -1)
    )
    if most - least < SHOWN:
        return message("idle.alike", share=most)
    ends = {"least_rank": least_rank, "most": most, "most_rank": most_rank}
    return message("idle.by_rank", least=least, **ends)


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
    if _idle_of(traced) < MIN_NAMED or not any(_has_compute(trace, rank) for rank in trace.ranks):
        return
    # Of a rank without any device event it is not known whether its device idled.
    seen = [
        rank
        for rank in account.windows.ranks.tolist()
        if trace.rank_table("kernel", rank, ["device"]).num_rows
    ]
    traced = traced[traced["rank"].isin(seen)]
    cost = _idle_of(traced)
    if cost < MIN_NAMED:
        return
    where = () if common is None else (_traced(common.tolist()),)
    report = idle_report(trace, account.windows, common, STALLS)
    if report is None:
        evidence = (message("idle.unknown_meaning"), *where)
        yield _finding(FindingKind.HOST_STALL, UNKNOWN_WORDS, "unknown", cost, evidence)
        return
    if report.clock_off is not None:
        words = UNKNOWN_WORDS._replace(remedy=message("idle.clock_off_remedy"))
        yield _finding(words.kind, words, "unknown", cost, (report.clock_off, *where))
        return
    if report.lost_frac >= MIN_COST:
        yield _lost_work(report)
    when = tuple(_in_some_steps(account, traced))
    for finding in _by_cause(report, cost, where, when):
        compiled = _COMPILED_REMEDIES.get(finding.cause or "")
        if compiled is not None and _is_compiled(trace):
            yield replace(finding, remedy=compiled)
        else:
            yield finding


def _idle_of(by_step: pd.DataFrame) -> float:
    """Return the share of some steps of ranks that their devices idle, 0 of none."""
    whole = float(by_step["step_ns"].sum())
    return float(by_step["unattributed"].sum()) / whole if whole else 0.0


def _in_some_steps(account: Account, traced: pd.DataFrame) -> Iterator[Message]:
    """Say in which steps the devices idle most, where that is some of them."""
    idle = traced.groupby("step")["unattributed"].mean()
    when = bad_steps(account.windows, idle, None)
    if when.are_all:
        return
    is_bad = idle.index.isin(when.steps)
    parts = {"bad_ns": float(idle[is_bad].mean()), "others_ns": float(idle[~is_bad].mean())}
    yield message("idle.in_steps", when=when.message, **parts)


def _lost_work(report: IdleReport) -> Finding:
    """Return that idle time may be none: what it costs is unknown."""
    return Finding(
        kind=FindingKind.MISSING_DATA,
        severity=Severity.WARNING,
        where={},
        claim=message("idle.lost", share=report.lost_frac, launches=report.lost_launches),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(message("idle.lost_meaning"),),
        remedy=message("idle.lost_remedy"),
        cause="lost_work",
    )


def _is_compiled(trace: Trace) -> bool:
    """Return whether torch.compile made some of what runs."""
    names = trace.rank_frame("name", trace.ranks[0])["name"].astype(str)
    return bool(names.str.match(_OF_COMPILER).any())


def _by_cause(
    report: IdleReport, cost: float, where: tuple[Message, ...], when: tuple[Message, ...]
) -> Iterator[Finding]:
    """Yield a finding for each cause that is worth one, and one for all others together.

    Args:
        report: The idle time by cause.
        cost: Share of the step that the devices idle.
        where: In which steps they were seen, for all causes.
        when: In which steps they idle most, for the largest cause.
    """
    total = sum(report.frac.values()) + report.lost_frac
    scale = min(1.0, cost / total) if total else 0.0
    share = {cause: frac * scale for cause, frac in report.frac.items()}
    rest = max(0.0, cost - sum(share.values()) - report.lost_frac * scale)
    most = max(share, key=lambda cause: share[cause])
    least = MIN_STALL if cost >= MIN_IDLE else MIN_NAMED
    for cause, frac in share.items():
        if frac < least:
            rest += frac
            continue
        words = IDLE_WORDS[cause]
        if cause == NOTHING and _names_function(report):
            words = words._replace(remedy=message("idle.nothing_remedy_seen"))
        longest = (report.longest_call,) if cause == most and report.longest_call else ()
        in_steps = when if cause == most else ()
        evidence = (*evidence_of(report, cause), *longest, *in_steps, *where)
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


def _names_function(report: IdleReport) -> bool:
    """Return whether stacks are recorded: the function is named in which the host was longest."""
    hosts = (said.values["host"] for said in report.notes.get(NOTHING, ()))
    return any(isinstance(host, Message) and host.code == "idle.host_in" for host in hosts)


def _finding(
    kind: FindingKind, words: IdleWords, cause: str, cost: float, evidence: tuple[Message, ...]
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
    """Return whether kernels compute; one of unknown kind that an operator launched is taken to."""
    kernel = trace.rank_frame("kernel", rank, ["category", "op_id"])
    of_operator = (kernel["category"] == KernelCategory.UNKNOWN) & (kernel["op_id"] >= 0)
    return bool(((kernel["category"] == KernelCategory.COMPUTE) | of_operator).any())
