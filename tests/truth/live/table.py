"""The figures of the live suite with their intervals, and every miss."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from tests.truth.live.cases import NONE
from tests.truth.live.judge import LiveVerdict
from tests.truth.live.paired import difference
from tests.truth.matrix.table import wilson


def report(verdicts: Sequence[LiveVerdict], not_judged: Sequence[str] = ()) -> str:
    """Return the table by fault, every job, the totals, the misses and what was not judged."""
    rows = dict.fromkeys(v.case.row for v in verdicts)
    lines = [
        "| fault | jobs | first finding right | 95 % | bar error median / worst, points |",
        "|---|---:|---:|---|---:|",
        *(_row(row, [v for v in verdicts if v.case.row == row]) for row in rows),
        "",
        "| job | true cost, % of the step | diagnosed | first finding | right |",
        "|---|---:|---:|---|---|",
        *map(_job, verdicts),
        "",
        *_totals(verdicts),
        *_pairs(verdicts),
        "",
        "Misses:",
        *(
            f"- {v.case.name}: wanted {v.wanted}, found {v.found} {v.place} {v.reported}".rstrip()
            for v in verdicts
            if not v.is_hit
        ),
    ]
    if not_judged:
        lines += ["", "Not judged:", *(f"- {reason}" for reason in not_judged)]
    return "\n".join(lines)


def _row(row: str, own: Sequence[LiveVerdict]) -> str:
    hits = sum(v.is_hit for v in own)
    low, high = wilson(hits, len(own))
    errors = [100 * v.bar_error for v in own if v.bar_error is not None]
    bars = f"{median(errors):.2f} / {max(errors):.2f}" if errors else "-"
    return f"| {row} | {len(own)} | {hits} | {low:.1%} .. {high:.1%} | {bars} |"


def _job(verdict: LiveVerdict) -> str:
    true, gain = verdict.true_frac, verdict.gain_frac
    cost = "-" if true is None else f"{100 * true:.1f} ± {100 * verdict.error_frac:.1f}"
    reported = "-" if gain is None else f"{100 * gain:.1f}"
    place = f" ({verdict.place})" if verdict.place else ""
    said = f"; {verdict.reported}" if verdict.reported else ""
    right = "yes" if verdict.is_hit else "no"
    return f"| {verdict.case.name} | {cost} | {reported} | {verdict.found}{place}{said} | {right} |"


def _totals(verdicts: Sequence[LiveVerdict]) -> list[str]:
    faulty = [v for v in verdicts if v.case.faults or v.case.kinds != (NONE,)]
    hits = sum(v.is_hit for v in faulty)
    low, high = wilson(hits, len(faulty))
    errors = [(v.bar_error, v.error_frac) for v in faulty if v.bar_error is not None]
    close = sum(error <= 0.01 for error, _ in errors)
    explained = sum(error <= max(0.01, 2 * noise) for error, noise in errors)
    false = sum(v.false_suspects for v in verdicts)
    # Cases of one run share its steps.
    windows = sum(len(v.steps) * v.case.layout.world_size for v in verdicts if not v.case.part)
    return [
        f"top-1: {hits} of {len(faulty)} ({hits / max(len(faulty), 1):.1%}, "
        f"95 % {low:.1%} .. {high:.1%})",
        f"bar error <= 1 point: {close} of {len(errors)}; <= 1 point or 2 standard errors of the "
        f"truth: {explained}; worst {100 * max((e for e, _ in errors), default=0.0):.2f} points",
        f"false suspects: {false} in {len({v.case.run for v in verdicts})} jobs ({windows:,} windows of a rank and step)",
    ]


def _pairs(verdicts: Sequence[LiveVerdict]) -> list[str]:
    """Return how much runs of the same healthy job differ: what no fault explains."""
    lines = []
    runs: dict[str, list[LiveVerdict]] = {}
    for verdict in verdicts:
        if not verdict.case.faults and verdict.case.kinds == (NONE,):
            runs.setdefault(verdict.case.name.rpartition("-")[0], []).append(verdict)
    for name, alike in runs.items():
        for one, other in pairwise(alike):
            found = difference(one.steps, other.steps)
            lines.append(
                f"{name}: the same job again differs by {found.cost_ns / 1e6:+.1f} ms a step "
                f"(standard error {found.error_ns / 1e6:.1f})"
            )
    return lines
