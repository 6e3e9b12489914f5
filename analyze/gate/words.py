"""The sentences of a gate: one place for all its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from meshscope.probe.schema.listing import listed

from ..wording.labels import axis_label, class_label
from ..wording.quantities import percent, percent_change
from ..wording.words import counted
from .counts_check import PREFIX
from .judge import STEP
from .moved import REST
from .results import Check, GateResult, Moved, Reason, Verdict

_NS_PER_MS = 1e6
_LEAST_OF_STAGE = 0.005
"""Of its compute: a stage that moved less is not named."""
_WIDE_MARGIN = 0.05
_NAMES = {"step_p50": "median step time", "step_p99": "slowest 1 % of steps (p99)"}
VERDICTS = {
    Verdict.PASS: "PASS: no loss beyond the margin",
    Verdict.FAIL: "FAIL: the candidate is worse than the baseline",
    Verdict.IMPROVED: "IMPROVED: refresh the baseline, so that the gate stays sharp",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE: these runs cannot decide",
    Verdict.INCOMPARABLE: "INCOMPARABLE: the runs were set up differently",
}


def metric_label(metric: str) -> str:
    """Return a metric as people write it.

    >>> metric_label("class.exposed_tp_wait"), metric_label("count.collectives.tp.all_reduce")
    ('TP communication: waiting', 'TP all_reduce per step')
    """
    if metric in _NAMES:
        return _NAMES[metric]
    family, _, rest = metric.partition(".")
    if family == "class":
        return class_label(rest)
    if metric == "count.kernels":
        return "kernel launches per step"
    parts = rest.split(".")
    if parts[0] == "passes":
        return f"{parts[1].replace('_', ' ')} passes per step"
    if len(parts) == 3:
        unit = " bytes" if parts[0] == "bytes" else ""
        return f"{axis_label(parts[1])} {parts[2]}{unit} per step"
    return metric


def why(check: Check) -> str:
    """Return the reason of a verdict with its numbers, one or two short sentences."""
    return _count(check) if check.metric.startswith(PREFIX) else _time(check)


def _time(check: Check) -> str:
    change = _change(check)
    margin = "" if check.margin_frac is None else percent(check.margin_frac, 2)
    return {
        Reason.SLOWER: f"{change}; above the margin of {margin}{_of_step(check)}",
        Reason.FASTER: f"{change}; beyond the margin of {margin}{_of_step(check)}",
        Reason.WITHIN: f"{change}; within the margin of {margin}",
        Reason.NO_LOSS_SEEN: f"{change}; no loss seen (margin {margin})",
        Reason.MORE_RUNS: f"{change}; margin {margin}. Needs about {_runs(check)} more",
        Reason.AT_MARGIN: f"{change}; too near the margin of {margin} for more runs to decide",
        Reason.ONE_RUN: f"{change}. One run does not decide its slowest steps. Needs 1 run more",
        Reason.ONE_BASELINE_RUN: (
            f"{change}. Run-to-run noise unknown: the baseline has 1 run. "
            f"Add {check.more_runs or 2} runs to the baseline"
        ),
        Reason.COST_SHIFT: (
            f"{change}: cost shift. {metric_label(str(check.detail.get('fell')))} fell by "
            f"{percent(-_number(check.detail.get('fell_frac')), 2)} of the step; the step is no longer"
        ),
    }.get(check.reason, change)


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _of_step(check: Check) -> str:
    if check.step_frac is None:
        return ""
    return f" ({percent_change(check.step_frac, 2)} of the step)"


def _runs(check: Check) -> str:
    return counted(check.more_runs or 1, "run")


def _change(check: Check) -> str:
    """Return ``500.0 → 512.0 ms, +2.4 % [+1.9 %, +2.9 %]``."""
    times = ""
    if check.before is not None and check.after is not None:
        times = f"{check.before / _NS_PER_MS:.3f} → {check.after / _NS_PER_MS:.3f} ms"
    if check.ratio is None:
        return f"{times}, new" if times else "no such time in the baseline"
    return f"{times}, {_percent(check.ratio)}{_interval(check)}"


def _interval(check: Check) -> str:
    if check.low is None or check.high is None:
        return ""
    return f" [{_percent(check.low)}, {_percent(check.high)}]"


def _percent(ratio: float) -> str:
    text = percent_change(ratio - 1, 2)
    return "0.00%" if text in ("+0.00%", "-0.00%") else text


def _count(check: Check) -> str:
    before, after = (f"{value:,.0f}" for value in (check.before or 0, check.after or 0))
    if check.reason is Reason.EQUAL:
        return f"{after}, as in the baseline"
    if check.reason is Reason.VARIES:
        return f"{before} → {after}; it varies between runs, so it decides nothing"
    change = (check.after or 0) - (check.before or 0)
    more = "more" if change > 0 else "fewer"
    return f"{before} → {after}: {abs(change):,.0f} {more} per step over all ranks"


def setup_lines(result: GateResult) -> Iterator[str]:
    """Yield what differs of the setup."""
    for name, (before, after) in result.setup.items():
        yield f"{name.replace('_', ' ')}: {before} in the baseline, {after} in the candidate"


def note_lines(result: GateResult) -> Iterator[str]:
    """Yield what a reader has to know beside the checks: where the time went, and which runs are odd."""
    if result.verdict is Verdict.INCOMPARABLE:
        return
    for rose, fell in result.shifts:
        yield f"Cost shift: {class_label(rose)} rose as {class_label(fell)} fell. The step is no longer."
    for name, (before, after) in result.explained.items():
        yield f"{name.replace('_', ' ').capitalize()}: {before} in the baseline, {after} in the candidate."
    margin = next((check.margin_frac for check in result.checks if check.metric == STEP), None)
    if margin is not None and margin > _WIDE_MARGIN:
        yield f"Losses up to {percent(margin)} pass: the margin is wide. Quieter runs or --margin make it narrower."
    moved = _moved_stage(result)
    if moved:
        yield moved
    if result.drifting:
        runs = listed(result.drifting)
        yield f"Not settled: {runs}. Compared over the same steps of every run."
    for name, ratio in result.disturbed:
        yield f"Run {name} is {percent(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'} than the others of its side."


def _moved_stage(result: GateResult) -> str:
    """Return which stage computes longer, where the step is slower and one stage moved more than the others."""
    row = moved_stage(result)
    if row is None:
        return ""
    return (
        f"Stage {row.name} computes {row.change_ns / _NS_PER_MS:.3f} ms longer per step "
        f"({row.before_ns / _NS_PER_MS:.3f} → {row.after_ns / _NS_PER_MS:.3f} ms); the other stages do not."
    )


def moved_stage(result: GateResult) -> Moved | None:
    """Return the stage that makes the step slower; None where none does more than the others."""
    is_slower = any(check.reason is Reason.SLOWER for check in result.checks)
    if not is_slower or len(result.stages) < 2:
        return None
    first, second = result.stages[:2]
    is_alone = first.change_ns >= max(2 * abs(second.change_ns), _LEAST_OF_STAGE * first.before_ns)
    return first if is_alone and first.change_ns > 0 else None


def pairs_line(pairs: int, planned: int, *, is_decided: bool) -> str:
    """Return after how many pairs the runs ended, and why."""
    if pairs == planned:
        return f"All {counted(planned, 'pair')} of runs were made."
    why_over = "the step time is decided" if is_decided else "setup or counts decide"
    return f"Stopped after {pairs} of {counted(planned, 'pair')} of runs: {why_over}."


def headline(result: GateResult) -> str:
    """Return the verdict and its first reason."""
    decisive = [check for check in result.checks if check.verdict is result.verdict]
    words = VERDICTS[result.verdict]
    if result.setup and result.verdict is Verdict.INCOMPARABLE:
        return f"{words}: {'; '.join(islice(setup_lines(result), 3))}"
    if result.broken and result.verdict is Verdict.INCONCLUSIVE:
        return f"INCONCLUSIVE: {'; '.join(f'{name}: {how}' for name, how in result.broken)}"
    if not result.checks:
        return f"{words}: neither step times nor counts are known on both sides"
    if not decisive:
        return words
    first = max(decisive, key=_weight)
    if first.reason is Reason.EQUAL:
        return f"PASS by counts: {counted(len(decisive), 'count')} per step as in the baseline. Times not judged"
    return f"{words}. {metric_label(first.metric)}: {why(first)}{_mostly(result, first)}"


def _mostly(result: GateResult, first: Check) -> str:
    """Return what holds most of a changed step: a stage, else a class; waiting follows from others."""
    if first.metric != STEP or first.reason not in (Reason.SLOWER, Reason.FASTER):
        return ""
    stage = moved_stage(result)
    if stage is not None:
        return f". Stage {stage.name} computes {stage.change_ns / _NS_PER_MS:+.3f} ms"
    sign = 1 if first.reason is Reason.SLOWER else -1
    causes = [row for row in result.classes if not row.name.endswith("_wait") and row.name != REST]
    row = max(causes, key=lambda one: sign * one.change_ns, default=None)
    if row is None or sign * row.change_ns <= 0:
        return ""
    return f". Mostly {class_label(row.name)}: {row.change_ns / _NS_PER_MS:+.3f} ms"


def _weight(check: Check) -> tuple[bool, bool, float]:
    """Return by what the first reason is chosen: counts explain times, and the step comes before its parts."""
    is_change = check.reason in (Reason.MORE, Reason.FEWER)
    is_exact = is_change and not check.metric.startswith("count.bytes")
    return is_exact, check.metric == STEP, abs((check.ratio or 2.0) - 1)
