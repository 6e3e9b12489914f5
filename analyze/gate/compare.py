"""A candidate against a baseline: setup, counts, times, and what the parts say together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from meshscope.probe.schema.errors import TraceFormatError

from ..wording.limits import Limit, ordered
from ..wording.message import message
from .counts import count_checks
from .facts import Baseline, RunFacts
from .judge import STEP, Compared, default_margin, judge, logs, undecided
from .loaded import LoadedRun, common_counts, facts_of, has_times, require_steps, time_limits
from .moved_time import class_rows, stage_rows
from .paired import Look, paired_check
from .results import Check, GateResult, Reason, Verdict
from .setup import COUNTED, different, hides_work

TAIL = "step_p99"
CLASS = "class."
TAIL_MARGINS = 10.0
"""The tail is the second or third slowest step of a run: its margin is so many of the step's."""
LEAST_CLASS = 1e-3
"""Share of the step below which a class is not compared."""
_OTHER_UNIT = 900.0
"""A factor of 1,000 is another unit; 900 leaves room for what the job changed by."""
_DISTURBED = 0.02
_FAR = 6.0
"""A run is off its side from 2 % on, the noise of shared machines, and from six usual distances."""


def compare(
    baseline: Baseline,
    runs: Sequence[LoadedRun],
    *,
    margin: float | None = None,
    allowed: frozenset[str] = frozenset(),
    look: Look | None = None,
) -> GateResult:
    """Return the verdict on the runs of one candidate.

    Args:
        baseline: What they are held against.
        runs: One or more runs of the candidate.
        margin: Accepted loss as a share of the step; None for that of the baseline's own noise.
        allowed: Names of the setup that may differ.
        look: Given where run i of both sides belong together: the step's median is judged by its pairs.

    Raises:
        TraceFormatError: A run is too short, though its times are needed, or has another unit of time.
    """
    differs = different(baseline, runs, allowed)
    explained = {name: sides for name, sides in differs.items() if name in COUNTED}
    setup = {name: sides for name, sides in differs.items() if name not in COUNTED}
    counts = count_checks(baseline, common_counts(runs))
    worked = [check for check in counts if hides_work(setup, check)]
    if setup and not worked:
        counts = ()
    checks = tuple(counts) if not setup else tuple(worked)
    candidate: list[RunFacts] = []
    shifts: tuple[tuple[str, str], ...] = ()
    if not setup and _has_times(baseline, runs):
        for run in runs:
            require_steps(run, baseline.window)
        candidate = [facts_of(run, baseline.window) for run in runs]
        _require_one_unit(baseline.runs, candidate)
        times, shifts = with_shifts(_times(list(_compared(baseline, candidate, margin)), look))
        checks = (*times, *checks)
    broken = tuple((run.name, run.ended) for run in runs if run.ended)
    verdict = _overall(checks, setup=bool(setup) and not worked)
    if broken and verdict is not Verdict.INCOMPARABLE:
        # What it did before it broke off says neither that the change is good nor that it is slow.
        verdict = Verdict.INCONCLUSIVE
    return GateResult(
        verdict=verdict,
        broken=broken,
        checks=checks,
        setup=setup,
        explained=explained,
        baseline_runs=len(baseline.runs),
        candidate_runs=tuple(run.name for run in runs),
        shifts=shifts,
        classes=class_rows(baseline.runs, candidate),
        stages=stage_rows(baseline.runs, candidate),
        drifting=tuple(run.name for run in (*baseline.runs, *candidate) if run.drift_frac),
        disturbed=(*_disturbed(baseline.runs), *_disturbed(candidate)),
        limits=_limits(baseline, runs),
    )


def _limits(baseline: Baseline, runs: Sequence[LoadedRun]) -> tuple[Limit, ...]:
    window = baseline.window if baseline.has_times else None
    found: list[Limit] = [*baseline.limits, *time_limits(runs, window)]
    for run in runs:
        found += run.limits
        if baseline.setup and not run.setup:
            found.append(message("unknown.setup_of_run", run=run.name))
    return ordered(found)


def _has_times(baseline: Baseline, runs: Sequence[LoadedRun]) -> bool:
    """Return whether both sides have step times; a CSV that is too short is refused, a trace is counted."""
    if not baseline.has_times:
        return False
    is_counted = any(run.counts for run in runs)
    return not is_counted or all(has_times(run, baseline.window) for run in runs)


def _require_one_unit(base: Sequence[RunFacts], candidate: Sequence[RunFacts]) -> None:
    """Refuse times of which one side is a thousand times the other: no change of a job is so large."""
    usual = float(np.median([run.p50_ns for run in base]))
    for run in candidate:
        if not 1 / _OTHER_UNIT < run.p50_ns / usual < _OTHER_UNIT:
            raise TraceFormatError(
                message("refused.other_unit", own_ns=run.p50_ns, usual_ns=usual),
                where=run.name,
                remedy=message("advice.nanoseconds"),
            )


def _times(compared: Sequence[Compared], look: Look | None) -> tuple[Check, ...]:
    """Return the checks of times; the tail of a single run is one event and decides nothing."""
    checks = judge([one for one in compared if len(one.candidate) > 1 or one.metric != TAIL])
    known = {check.metric: check for check in checks}
    if look is not None:
        known |= {
            one.metric: paired_check(one, look)
            for one in compared
            if one.metric == STEP and len(one.candidate) > 1
        }
    return tuple(known.get(one.metric) or undecided(one) for one in compared)


def _compared(
    baseline: Baseline, candidate: Sequence[RunFacts], margin: float | None
) -> Iterator[Compared]:
    base = logs([run.p50_ns for run in baseline.runs])
    step_margin = default_margin(base) if margin is None else margin
    for metric, name, factor in ((STEP, "p50_ns", 1.0), (TAIL, "p99_ns", TAIL_MARGINS)):
        before, after = (
            [getattr(run, name) for run in side] for side in (baseline.runs, candidate)
        )
        least = step_margin * factor
        yield Compared(
            metric=metric,
            base=logs(before),
            candidate=logs(after),
            margin=step_margin if factor == 1 else default_margin(logs(before), least),
            before_ns=float(np.exp(logs(before).mean())),
            after_ns=float(np.exp(logs(after).mean())),
            is_log=True,
        )
    yield from _classes(baseline.runs, candidate, step_margin)


def _classes(
    base: Sequence[RunFacts], candidate: Sequence[RunFacts], step_margin: float
) -> Iterator[Compared]:
    """Yield the classes: a loss is held against the step, so that small ones need no margin of their own."""
    step_ns = float(np.exp(logs([run.p50_ns for run in base]).mean()))
    if not all(run.classes_ns for run in (*base, *candidate)):
        return
    for name in dict.fromkeys(name for run in (*base, *candidate) for name in run.classes_ns):
        before, after = (
            np.array([run.classes_ns.get(name, 0.0) for run in side]) / step_ns
            for side in (base, candidate)
        )
        if max(before.mean(), after.mean()) < LEAST_CLASS:
            continue
        yield Compared(
            metric=CLASS + name,
            base=before,
            candidate=after,
            margin=default_margin(before, step_margin),
            before_ns=float(before.mean()) * step_ns,
            after_ns=float(after.mean()) * step_ns,
            is_log=False,
        )


def with_shifts(
    checks: Sequence[Check],
) -> tuple[tuple[Check, ...], tuple[tuple[str, str], ...]]:
    """Return the checks, those of classes that only exchanged time passed, and which did.

    A class that rises while the step does not get longer, and others fall by as much, is a cost shift.
    """
    step = next((check for check in checks if check.metric == STEP), None)
    rose = [check for check in checks if _is_class(check) and check.verdict is Verdict.FAIL]
    fell = [check for check in checks if _is_class(check) and (check.step_frac or 0) < 0]
    if step is None or step.verdict not in (Verdict.PASS, Verdict.IMPROVED) or not rose or not fell:
        return tuple(checks), ()
    most = min(fell, key=lambda check: check.step_frac or 0.0)
    shifts = tuple((check.metric[len(CLASS) :], most.metric[len(CLASS) :]) for check in rose)
    moved = [_shifted(check, most) if check in rose else check for check in checks]
    return tuple(moved), shifts


def _shifted(check: Check, fell: Check) -> Check:
    detail: dict[str, object] = {"fell": fell.metric, "fell_frac": fell.step_frac}
    return replace(check, verdict=Verdict.PASS, reason=Reason.COST_SHIFT, detail=detail)


def _is_class(check: Check) -> bool:
    return check.metric.startswith(CLASS)


def _overall(checks: Sequence[Check], *, setup: bool) -> Verdict:
    """Return the verdict of all: the tail and the classes decide only where they fail."""
    if setup or not checks:
        return Verdict.INCOMPARABLE if setup else Verdict.INCONCLUSIVE
    if any(check.verdict is Verdict.FAIL for check in checks):
        return Verdict.FAIL
    step = next((check for check in checks if check.metric == STEP), None)
    counted = [check for check in checks if check.reason in (Reason.EQUAL, Reason.FEWER)]
    if step is None:
        return Verdict.PASS if counted else Verdict.INCONCLUSIVE
    if step.reason is Reason.ONE_BASELINE_RUN:
        # One run tells nothing of its noise: what is counted decides, unless the step looks slower.
        within = (step.ratio or 1.0) <= 1 + (step.margin_frac or 0.0)
        return Verdict.PASS if counted and within else Verdict.INCONCLUSIVE
    if step.verdict is Verdict.PASS and any(c.verdict is Verdict.IMPROVED for c in counted):
        return Verdict.IMPROVED
    return step.verdict


def _disturbed(runs: Sequence[RunFacts]) -> tuple[tuple[str, float], ...]:
    """Return runs far off the others of their side: by 2 % and by six times the usual distance."""
    if len(runs) < 4 or not all(run.p50_ns > 0 for run in runs):
        return ()
    times = np.array([run.p50_ns for run in runs])
    ratio = times / np.median(times)
    usual = max(1e-4, 1.4826 * float(np.median(np.abs(ratio - 1))))
    far = np.abs(ratio - 1) > max(_DISTURBED, _FAR * usual)
    return tuple(
        (run.name, float(value))
        for run, value in zip(np.array(runs, object)[far], ratio[far], strict=True)
    )
