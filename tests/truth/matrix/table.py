"""The figures of the suite with their intervals, and every miss."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import median

from .cases import NONE
from .judge import SEEN_FROM, Verdict


def wilson(hits: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a rate (Wilson, JASA 22, 1927); (0, 1) without a case."""
    if not total:
        return 0.0, 1.0
    rate = hits / total
    centre = (rate + z * z / (2 * total)) / (1 + z * z / total)
    half = z * sqrt(rate * (1 - rate) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def macro_f1(verdicts: Sequence[Verdict]) -> float:
    """Return the mean over the wanted kinds of the harmonic mean of precision and recall."""
    pairs = Counter((v.wanted, v.found) for v in verdicts)
    kinds = sorted({v.wanted for v in verdicts})
    scores = []
    for kind in kinds:
        hit = pairs[kind, kind]
        named = sum(n for (_, found), n in pairs.items() if found == kind)
        meant = sum(n for (wanted, _), n in pairs.items() if wanted == kind)
        scores.append(2 * hit / (named + meant) if named + meant else 0.0)
    return sum(scores) / len(scores)


def is_hit(verdict: Verdict) -> bool:
    """Return whether the first finding names the right cause at the right place."""
    return verdict.found == verdict.wanted and verdict.is_located


def report(verdicts: Sequence[Verdict]) -> str:
    """Return the table by row of the matrix, the totals, and the misses."""
    lines = [
        "| fault | cases | first finding right | 95 % | bar error median / worst, points |",
        "|---|---:|---:|---|---:|",
    ]
    for row in dict.fromkeys(v.case.row for v in verdicts):
        own = [v for v in verdicts if v.case.row == row]
        lines.append(_line(row, own))
    lines += ["", *_totals(verdicts), "", "Misses:", *(_miss(v) for v in verdicts if not is_hit(v))]
    return "\n".join(lines)


def _line(row: str, own: Sequence[Verdict]) -> str:
    hits = sum(map(is_hit, own))
    low, high = wilson(hits, len(own))
    errors = [100 * v.bar_error for v in own if v.bar_error is not None]
    bars = f"{median(errors):.2f} / {max(errors):.2f}" if errors else "-"
    return f"| {row} | {len(own)} | {hits} | {low:.1%} .. {high:.1%} | {bars} |"


def _totals(verdicts: Sequence[Verdict]) -> list[str]:
    costly = [v for v in verdicts if v.wanted != NONE]
    hits = sum(map(is_hit, costly))
    low, high = wilson(hits, len(costly))
    errors = [100 * v.bar_error for v in verdicts if v.bar_error is not None]
    within = sum(error <= 1.0 for error in errors)
    ranks = sum(v.case.job.layout.world_size * v.case.job.steps for v in verdicts)
    false = sum(v.false_suspects for v in verdicts)
    return [
        f"top-1 where the loss is >= {SEEN_FROM:.0%} of a step: {hits} of {len(costly)} "
        f"({hits / max(len(costly), 1):.1%}, 95 % {low:.1%} .. {high:.1%})",
        f"macro-F1 over {len({v.wanted for v in verdicts})} kinds: {macro_f1(verdicts):.3f}",
        f"bar error <= 1 point: {within} of {len(errors)}; worst {max(errors, default=0):.2f} points",
        f"false suspects: {false} in {len(verdicts)} cases ({ranks:,} windows of a rank and step)",
    ]


def _miss(verdict: Verdict) -> str:
    case = verdict.case
    faults = "; ".join(fault.text() for fault in case.job.faults) or "none"
    job = case.job
    mesh = f"tp{job.layout.tp} pp{job.layout.pp} dp{job.layout.dp} {job.schedule}"
    return (
        f"- {case.row} #{case.number} ({mesh}, {faults}): wanted {verdict.wanted}, found "
        f"{verdict.found}, place {'right' if verdict.is_located else 'wrong'}, "
        f"true gain {verdict.true_gain:.1%}"
    )
