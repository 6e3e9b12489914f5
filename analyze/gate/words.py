"""The sentences of a gate: one place for all its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from meshscope.probe.schema.printable import listed

from ..wording.message import Message, message
from .counts import PREFIX
from .judge import STEP
from .moved_time import REST
from .results import Check, GateResult, Moved, Reason, Verdict

_LEAST_OF_STAGE = 0.005
"""Of its compute: a stage that moved less is not named."""
_WIDE_MARGIN = 0.05
"""A gate that lets 5 % pass misses most regressions, so its margin is said."""
_NAMES = {
    "step_p50": message("gate_metric.step_p50"),
    "step_p99": message("gate_metric.step_p99"),
    "count.kernels": message("gate_metric.kernels"),
}
VERDICTS = {
    Verdict.PASS: message("gate.pass"),
    Verdict.FAIL: message("gate.fail"),
    Verdict.IMPROVED: message("gate.improved"),
    Verdict.INCONCLUSIVE: message("gate.inconclusive"),
    Verdict.INCOMPARABLE: message("gate.incomparable"),
}


def metric_label(metric: str) -> Message:
    """Return a metric as people write it.

    >>> str(metric_label("class.exposed_tp_wait")), str(metric_label("count.collectives.tp.all_reduce"))
    ('TP communication: waiting', 'TP all_reduce per step')
    """
    if metric in _NAMES:
        return _NAMES[metric]
    family, _, rest = metric.partition(".")
    if family == "class":
        return message("gate_metric.of_class", name=rest)
    parts = rest.split(".")
    if parts[0] == "passes":
        return message("gate_metric.passes", kind=parts[1])
    if len(parts) == 3 and parts[0] == "bytes":
        return message("gate_metric.bytes", axis=parts[1], kind=parts[2])
    if len(parts) == 3:
        return message("gate_metric.calls", axis=parts[1], kind=parts[2])
    return message("gate_metric.other", name=metric)


def why(check: Check) -> Message:
    """Return the reason of a verdict with its numbers, one or two short sentences."""
    return _count(check) if check.metric.startswith(PREFIX) else _time(check)


def _time(check: Check) -> Message:
    change, runs = _change(check), check.more_runs
    match check.reason:
        case Reason.ONE_RUN:
            return message("gate.one_run", change=change)
        case Reason.ONE_BASELINE_RUN:
            return message("gate.one_baseline_run", change=change, runs=runs or 2)
        case Reason.COST_SHIFT:
            return _cost_shift(change, check)
    if check.margin_frac is None:
        # Where a time is new, the margin is no share of it.
        return _beside_step(change, check)
    return _by_margin(change, check.margin_frac, check)


def _by_margin(change: Message, margin: float, check: Check) -> Message:
    match check.reason:
        case Reason.SLOWER:
            return _beside_step(message("gate.slower", change=change, margin=margin), check)
        case Reason.FASTER:
            return _beside_step(message("gate.faster", change=change, margin=margin), check)
        case Reason.WITHIN:
            return message("gate.within", change=change, margin=margin)
        case Reason.NO_LOSS_SEEN:
            return message("gate.no_loss_seen", change=change, margin=margin)
        case Reason.AT_MARGIN:
            return message("gate.at_margin", change=change, margin=margin)
        case Reason.MORE_RUNS:
            runs = check.more_runs or 1
            return message("gate.more_runs", change=change, margin=margin, runs=runs)
    return change


def _cost_shift(change: Message, check: Check) -> Message:
    fell = metric_label(str(check.detail.get("fell")))
    return message(
        "gate.cost_shift",
        change=change,
        fell=fell,
        share=-_number(check.detail.get("fell_frac")),
    )


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _beside_step(said: Message, check: Check) -> Message:
    if check.step_frac is None:
        return said
    return message("gate.of_step", said=said, share=check.step_frac)


def _change(check: Check) -> Message:
    """Return ``500.000 → 512.000 ms, +2.40 % [+1.90 %, +2.90 %]``."""
    before, after = check.before, check.after
    change = None if check.ratio is None else _ratio(check, check.ratio)
    if before is None or after is None:
        return message("gate.no_such_time") if change is None else change
    if change is None:
        return message("gate.new_time", before_ns=before, after_ns=after)
    return message("gate.change", before_ns=before, after_ns=after, change=change)


def _ratio(check: Check, ratio: float) -> Message:
    if check.low is None or check.high is None:
        return message("gate.ratio", change=ratio - 1)
    return message("gate.ratio_between", change=ratio - 1, low=check.low - 1, high=check.high - 1)


def _count(check: Check) -> Message:
    before, after = round(check.before or 0), round(check.after or 0)
    if check.reason is Reason.EQUAL:
        return message("gate.equal", after=after)
    if check.reason is Reason.VARIES:
        return message("gate.varies", before=before, after=after)
    change = (check.after or 0) - (check.before or 0)
    if change > 0:
        return message("gate.more", before=before, after=after, change=round(change))
    return message("gate.fewer", before=before, after=after, change=round(-change))


def setup_lines(result: GateResult) -> Iterator[Message]:
    """Yield what differs of the setup."""
    for name, (before, after) in result.setup.items():
        yield message("gate.setup", name=name, before=before, after=after)


def note_lines(result: GateResult) -> Iterator[Message]:
    """Yield what a reader has to know beside the checks: where the time went, and which runs are odd."""
    if result.verdict is Verdict.INCOMPARABLE:
        return
    for rose, fell in result.shifts:
        yield message("gate.shift", rose=rose, fell=fell)
    for name, (before, after) in result.explained.items():
        yield message("gate.explained", name=name, before=before, after=after)
    margin = next((check.margin_frac for check in result.checks if check.metric == STEP), None)
    if margin is not None and margin > _WIDE_MARGIN:
        yield message("gate.wide_margin", margin=margin)
    row = moved_stage(result)
    if row is not None:
        yield message(
            "gate.moved_stage",
            stage=row.name,
            change_ns=row.change_ns,
            before_ns=row.before_ns,
            after_ns=row.after_ns,
        )
    if result.drifting:
        yield message("gate.not_settled", runs=listed(result.drifting))
    for name, ratio in result.disturbed:
        if ratio > 1:
            yield message("gate.slower_run", run=name, share=ratio - 1)
        else:
            yield message("gate.faster_run", run=name, share=1 - ratio)


def moved_stage(result: GateResult) -> Moved | None:
    """Return the stage that makes the step slower; None where none does more than the others."""
    is_slower = any(check.reason is Reason.SLOWER for check in result.checks)
    if not is_slower or len(result.stages) < 2:
        return None
    first, second = result.stages[:2]
    is_alone = first.change_ns >= max(2 * abs(second.change_ns), _LEAST_OF_STAGE * first.before_ns)
    return first if is_alone and first.change_ns > 0 else None


def pairs_line(pairs: int, planned: int, *, is_decided: bool) -> Message:
    """Return after how many pairs the runs ended, and why."""
    if pairs == planned:
        return message("gate.all_pairs", pairs=planned)
    if is_decided:
        return message("gate.decided", pairs=pairs, planned=planned)
    return message("gate.decided_by_setup", pairs=pairs, planned=planned)


def headline(result: GateResult) -> Message:
    """Return the verdict and its first reason."""
    decisive = [check for check in result.checks if check.verdict is result.verdict]
    verdict = VERDICTS[result.verdict]
    if result.setup and result.verdict is Verdict.INCOMPARABLE:
        reasons = list(islice(setup_lines(result), 3))
        return message("gate.because", verdict=verdict, reasons=reasons)
    if result.broken and result.verdict is Verdict.INCONCLUSIVE:
        ends = [message("gate.run_ended", run=name, end=end) for name, end in result.broken]
        return message("gate.inconclusive_runs", runs=ends)
    if not result.checks:
        return message("gate.nothing_known", verdict=verdict)
    if not decisive:
        return verdict
    first = max(decisive, key=_weight)
    if first.reason is Reason.EQUAL:
        return message("gate.pass_by_counts", counts=len(decisive))
    label, mostly = metric_label(first.metric), _mostly(result, first)
    if mostly is None:
        return message("gate.first", verdict=verdict, metric=label, why=why(first))
    return message(
        "gate.first_mostly", verdict=verdict, metric=label, why=why(first), mostly=mostly
    )


def _mostly(result: GateResult, first: Check) -> Message | None:
    """Return what holds most of a changed step: a stage, else a class; waiting follows from others."""
    if first.metric != STEP or first.reason not in (Reason.SLOWER, Reason.FASTER):
        return None
    stage = moved_stage(result)
    if stage is not None:
        return message("gate.mostly_stage", stage=stage.name, change_ns=stage.change_ns)
    sign = 1 if first.reason is Reason.SLOWER else -1
    causes = [row for row in result.classes if not row.name.endswith("_wait") and row.name != REST]
    row = max(causes, key=lambda one: sign * one.change_ns, default=None)
    if row is None or sign * row.change_ns <= 0:
        return None
    return message("gate.mostly", name=row.name, change_ns=row.change_ns)


def _weight(check: Check) -> tuple[bool, bool, float]:
    """Return by what the first reason is chosen: counts explain times, and the step comes before its parts."""
    is_change = check.reason in (Reason.MORE, Reason.FEWER)
    is_exact = is_change and not check.metric.startswith("count.bytes")
    return is_exact, check.metric == STEP, abs((check.ratio or 2.0) - 1)
