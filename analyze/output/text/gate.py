"""A gate's result and a baseline as text; the sentences themselves are in ``gates.words``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...wording.labels import class_label
from ...wording.text_table import text_table
from ...wording.words import counted
from ..document import Block, Item, Lines, Listing, facts
from .amounts import limit_lines
from .page import page

_ORDER = ("fail", "inconclusive", "improved", "pass")
_MOST_ROWS = 60


def gate_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return the JSON form of a gate for people: verdict, checks with reasons, where it moved."""
    runs = f"{len(result['candidate_runs'])} of the candidate, {result['baseline_runs']} of the baseline"
    lines = [f"**{result['why']}**" if markdown else result["why"], "", f"Runs: {runs}"]
    for block in (
        list(_setup_lines(result)),
        list(_checks(result["checks"], markdown=markdown)),
        [f"- {note}" for note in result["notes"]],
    ):
        lines += ["", *block] if block else []
    if result["verdict"] != "pass":
        lines += _classes(result["classes"], markdown=markdown)
    return page([*lines, *limit_lines(result["limits"])], markdown=markdown)


def gate_blocks(result: dict[str, Any]) -> list[Block]:
    """Return the verdict, what differs in the setup, and the checks that say something."""
    shown = [check for check in result["checks"] if not _is_quiet(check)]
    shown.sort(key=lambda check: _ORDER.index(check["verdict"]))
    return [
        Lines([result["why"]]),
        facts([line.removeprefix("- ") for line in _setup_lines(result)]),
        Listing(
            [
                Item(check["why"], mark=f"[{check['verdict']}] {check['metric']}:")
                for check in shown[:_MOST_ROWS]
            ]
        ),
        facts(result["notes"]),
    ]


def _setup_lines(result: dict[str, Any]) -> Iterator[str]:
    for name, sides in result["setup"].items():
        yield f"- {name}: {sides['baseline']} in the baseline, {sides['candidate']} in the candidate"


def _checks(checks: list[dict[str, Any]], *, markdown: bool) -> Iterator[str]:
    """Yield what decides first; what changes nothing shares a line."""
    shown = [check for check in checks if not _is_quiet(check)]
    shown.sort(key=lambda check: _ORDER.index(check["verdict"]))
    rows = [[check["metric"], check["verdict"], check["why"]] for check in shown[:_MOST_ROWS]]
    if markdown and rows:
        yield from text_table(["metric", "verdict", "why"], rows, markdown=True, left=3)
    elif rows:
        width = max(len(row[0]) for row in rows)
        yield from (f"{verdict:<13} {metric:<{width}}  {why}" for metric, verdict, why in rows)
    if len(shown) > _MOST_ROWS:
        yield f"… and {len(shown) - _MOST_ROWS} more checks (--format json has all)"
    quiet = list(_quiet_lines([check for check in checks if _is_quiet(check)]))
    if rows and quiet:
        yield ""
    yield from quiet


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


def _classes(rows: list[dict[str, Any]], *, markdown: bool) -> Iterator[str]:
    """Yield where the step changed, as ``meshscope compare`` has it; classes add up to the total."""
    if not rows:
        return
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
    yield from ("", "#### Where the step changed" if markdown else "Where the step changed")
    if markdown:
        yield ""
    headers = ["class, mean over ranks", "before ms", "after ms", "change ms"]
    yield from text_table(headers, cells, markdown=markdown)


def _class_label(name: str) -> str:
    return {"rest": "smaller classes", "total": "total"}.get(name) or class_label(name)


def baseline_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return what a new baseline holds, and by how much its runs differ."""
    lines = [
        f"Baseline of {counted(result['runs'], 'run')}: {result['file']}",
        "",
        *(_times_of_baseline(result) if result["p50_ns"] else ["step            not compared"]),
        f"counts          {result['counts']} per step",
    ]
    if result["drifting_runs"]:
        lines.append(f"not settled     {', '.join(result['drifting_runs'])}")
    return page([*lines, *limit_lines(result["limits"])], markdown=markdown)


def _times_of_baseline(result: dict[str, Any]) -> Iterator[str]:
    noise = result["cv_frac"]
    yield f"step            {result['p50_ns'] / 1e6:.3f} ms (median)"
    yield f"steps compared  {result['first']} to {result['first'] + result['count'] - 1} of each run"
    yield "run to run CV   " + ("unknown: one run" if noise is None else f"{noise:.2%}")
    yield f"margin          {result['margin_frac']:.2%}, if --margin gives none"
