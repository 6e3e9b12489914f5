"""A gate's result, a baseline, its noise and its history as documents; the sentences are in ``gate.words``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...wording.quantities import percent, percent_change
from ...wording.words import class_label, counted
from ..document import Block, Heading, Item, Lines, Listing, Table, facts, is_empty, section
from .amounts import limits_section

_ORDER = ("fail", "inconclusive", "improved", "pass")
_MOST_ROWS = 60


def gate_document(result: dict[str, Any]) -> list[Block]:
    """Return the JSON form of a gate for people: verdict, checks with reasons, where it moved."""
    moved = result["classes"] if result["verdict"] != "pass" else []
    return [
        *gate_blocks(result),
        *section("Where the step changed", _classes(moved)),
        *limits_section(result["limits"]),
    ]


def gate_blocks(result: dict[str, Any]) -> list[Block]:
    """Return the verdict, what differs in the setup, and the checks that say something."""
    runs = f"{len(result['candidate_runs'])} of the candidate, {result['baseline_runs']} of the baseline"
    parts = (facts(list(_setup(result))), *_checks(result["checks"]), facts(result["notes"]))
    return [
        Lines([result["why"], f"Runs: {runs}"]),
        *(part for part in parts if not is_empty(part)),
    ]


def _setup(result: dict[str, Any]) -> Iterator[str]:
    for name, sides in result["setup"].items():
        yield f"{name}: {sides['baseline']} in the baseline, {sides['candidate']} in the candidate"


def _checks(checks: list[dict[str, Any]]) -> Iterator[Block]:
    """Yield what decides first; what changes nothing shares a line."""
    shown = [check for check in checks if not _is_quiet(check)]
    shown.sort(key=lambda check: _ORDER.index(check["verdict"]))
    yield Listing(
        [
            Item(check["why"], mark=f"[{check['verdict']}] {check['metric']}:")
            for check in shown[:_MOST_ROWS]
        ]
    )
    more = [f"… and {len(shown) - _MOST_ROWS} more checks (--format json has all)"]
    yield Lines(more if len(shown) > _MOST_ROWS else [])
    yield Lines(list(_quiet_lines([check for check in checks if _is_quiet(check)])))


def _is_quiet(check: dict[str, Any]) -> bool:
    """Return whether a check is one of many that changed nothing, or that cannot be judged."""
    if check["reason"] in ("equal", "one_baseline_run"):
        return bool(check["metric"] != "step_p50")
    is_class = str(check["metric"]).startswith("class.")
    return is_class and check["reason"] in ("within", "no_loss_seen")


def _quiet_lines(checks: list[dict[str, Any]]) -> Iterator[str]:
    counts = sum(check["reason"] == "equal" for check in checks)
    if counts:
        yield f"{counted(counts, 'count')} per step as in the baseline."
    unknown = sum(check["reason"] == "one_baseline_run" for check in checks)
    if unknown:
        yield f"{counted(unknown, 'more time')} not judged: the noise between runs is unknown."
    within = len(checks) - counts - unknown
    if within:
        yield f"{counted(within, 'class')} of time: no loss beyond the margin."


def _classes(rows: list[dict[str, Any]]) -> Table:
    """Return where the step changed, as ``meshscope compare`` has it; classes add up to the total."""
    keys = ("before_ns", "after_ns", "change_ns")
    total = {"class": "total", **{key: sum(row[key] for row in rows) for key in keys}}
    cells = [
        (
            _class_label(row["class"]),
            *(f"{row[key] / 1e6:.3f}" for key in keys[:2]),
            f"{row['change_ns'] / 1e6:+.3f}",
        )
        for row in (*rows, total)
    ]
    headers = ["class, mean over ranks", "before ms", "after ms", "change ms"]
    return Table(headers, cells if rows else [])


def _class_label(name: str) -> str:
    return {"rest": "smaller classes", "total": "total"}.get(name) or class_label(name)


def baseline_document(result: dict[str, Any]) -> list[Block]:
    """Return what a new baseline holds, and by how much its runs differ."""
    lines = [
        *(_times_of_baseline(result) if result["p50_ns"] else ["step            not compared"])
    ]
    lines.append(f"counts          {result['counts']} per step")
    if result["drifting_runs"]:
        lines.append(f"not settled     {', '.join(result['drifting_runs'])}")
    return [
        Heading(f"Baseline of {counted(result['runs'], 'run')}: {result['file']}"),
        Lines(lines),
        *limits_section(result["limits"]),
    ]


def _times_of_baseline(result: dict[str, Any]) -> Iterator[str]:
    noise = result["cv_frac"]
    yield f"step            {result['p50_ns'] / 1e6:.3f} ms (median)"
    yield f"steps compared  {result['first']} to {result['first'] + result['count'] - 1} of each run"
    yield "run to run CV   " + ("unknown: one run" if noise is None else percent(noise, 2))
    yield f"margin          {percent(result['margin_frac'], 2)}, if --margin gives none"


def selftest_document(result: dict[str, Any]) -> list[Block]:
    """Return how often equal runs would fail."""
    rows = [
        [
            f"{row['base_runs']} + {row['candidate_runs']}",
            row["splits"],
            percent(row["failed"] / row["splits"]),
            percent(row["inconclusive"] / row["splits"]),
        ]
        for row in result["splits"]
    ]
    head = (
        f"False alarms on {result['runs']} equal runs, margin {percent(result['margin_frac'], 2)}"
    )
    columns = ["runs", "splits", "fail", "inconclusive"]
    return [Heading(head), Table(columns, rows)]


def calibration_document(result: dict[str, Any]) -> list[Block]:
    """Return what loss would be found with how many runs."""
    rows = [[row["candidate_runs"], f"+{percent(row['loss_frac'], 2)}"] for row in result["seen"]]
    head = (
        f"Loss found in 95 of 100 cases: {result['runs']} baseline runs, "
        f"CV {percent(result['cv_frac'], 2)}, margin {percent(result['margin_frac'], 2)}"
    )
    columns = ["candidate runs", "loss"]
    return [Heading(head), Table(columns, rows)]


def history_document(result: dict[str, Any]) -> list[Block]:
    """Return the changes of a history."""
    points = result["change_points"]
    head = f"{counted(len(points), 'change')} of the step time over {counted(len(result['runs']), 'run')}"
    rows = [
        [
            point["run"],
            f"{point['before_ns'] / 1e6:.3f}",
            f"{point['after_ns'] / 1e6:.3f}",
            percent_change(point["ratio"] - 1, 2),
            f"{point['chance']:.3f}",
        ]
        for point in points
    ]
    if not rows:
        return [Lines([head])]
    return [Heading(head), Table(["from run", "before ms", "after ms", "change", "p"], rows)]
