"""The figures of the suite with their intervals, and every miss."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from statistics import median

from tests.truth.matrix.cases import NONE
from tests.truth.matrix.judge import SEEN_FROM, Verdict

CLOSE = 0.01
"""Share of the step within which a bar is right."""


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
    """Return whether the first finding names the right cause and place, and no fault is missed."""
    return verdict.found == verdict.wanted and verdict.is_located and not verdict.missed


def report(verdicts: Sequence[Verdict]) -> str:
    """Return the table by row of the matrix, the totals, and the misses."""
    lines = [
        "| fault | cases | first finding right | 95 % | bar error median / worst, points |",
        "|---|---:|---:|---|---:|",
    ]
    for row in dict.fromkeys(v.case.row for v in verdicts):
        own = [v for v in verdicts if v.case.row == row]
        lines.append(_line(row, own))
    far = [v for v in verdicts if v.bar_error is not None and v.bar_error > CLOSE]
    lines += ["", *_totals(verdicts)]
    lines += ["", "Bars off by more than a point:", *map(_far, far)]
    lines += ["", "Misses:", *(_miss(v) for v in verdicts if not is_hit(v))]
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
    within = sum(error <= 100 * CLOSE for error in errors)
    ranks = sum(v.case.job.layout.world_size * v.case.job.steps for v in verdicts)
    false = sum(v.false_suspects for v in verdicts)
    shares = [100 * v.share_error for v in verdicts if v.share_error is not None]
    sums = [100 * v.sum_error for v in verdicts if v.sum_error is not None]
    skews = [100 * v.skew_change for v in verdicts if v.skew_change is not None]
    return [
        f"top-1 where the loss is >= {SEEN_FROM:.0%} of a step: {hits} of {len(costly)} "
        f"({hits / max(len(costly), 1):.1%}, 95 % {low:.1%} .. {high:.1%})",
        f"macro-F1 over {len({v.wanted for v in verdicts})} kinds: {macro_f1(verdicts):.3f}",
        f"bar error <= 1 point: {within} of {len(errors)}; worst {max(errors, default=0):.2f} points",
        _coverage(verdicts),
        f"several faults, {len(sums)} cases: worst share off by median {median(shares or [0]):.2f}, "
        f"at most {max(shares, default=0):.2f} points; their sum, against what they cost together, "
        f"by median {median(sums or [0]):.2f}, at most {max(sums, default=0):.2f} points",
        f"clock skew, {len(skews)} cases: no bar changes by more than "
        f"{max(skews, default=0):.3f} points",
        f"false suspects: {false} in {len(verdicts)} cases ({ranks:,} windows of a rank and step)",
    ]


def _coverage(verdicts: Sequence[Verdict]) -> str:
    """Say how often the interval that stands with a removal gain holds the true one."""
    known = [(v, v.interval) for v in verdicts if v.interval is not None]
    held = sum(low <= verdict.true_gain <= high for verdict, (low, high) in known)
    widths = [100 * (high - low) / 2 for _, (low, high) in known]
    return (
        f"intervals of 95 %: {held} of {len(known)} hold the true gain; half of one is "
        f"{median(widths or [0]):.2f} points in the median, {max(widths, default=0):.2f} at most"
    )


def _far(verdict: Verdict) -> str:
    reported = ""
    if verdict.interval is not None:
        low, high = verdict.interval
        reported = f", reported as between {low:.1%} and {high:.1%}"
    return f"- {_name(verdict)}: true {verdict.true_gain:.1%}, off by {verdict.bar_error or 0.0:.1%}{reported}"


def _miss(verdict: Verdict) -> str:
    return (
        f"- {_name(verdict)}: wanted {verdict.wanted}, found "
        f"{verdict.found}, place {'right' if verdict.is_located else 'wrong'}, "
        f"true gain {verdict.true_gain:.1%}, missed {'; '.join(verdict.missed) or 'nothing'}"
    )


def _name(verdict: Verdict) -> str:
    case, layout = verdict.case, verdict.case.job.layout
    faults = "; ".join(fault.text() for fault in case.job.faults) or "none"
    mesh = f"tp{layout.tp} pp{layout.pp} dp{layout.dp} v{layout.vpp} {case.job.schedule}"
    return f"{case.row} #{case.number} ({mesh}, {faults})"
