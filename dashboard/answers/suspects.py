"""What to try in a replay: the slow places of the findings, and all that can be repaired or set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from meshscope.analyze import Cause, Diagnosis, Finding, Trace
from meshscope.analyze.explain.whatif.changes import CAUSES
from meshscope.analyze.explain.whatif.transfers import TYPE_BYTES
from meshscope.analyze.findings.location import ranks_named
from meshscope.analyze.formulas.schedules import SCHEDULES
from meshscope.analyze.output.causes import shown_causes
from meshscope.analyze.output.json.diagnosis import records_to_json
from meshscope.analyze.output.straggler_tables import find_stragglers
from meshscope.analyze.tables.results import ENDS
from meshscope.analyze.wording.words import axis_label, place_words
from meshscope.probe.schema.terms import Axis, FindingKind

Row = Mapping[str, Any]

MOST_FIXED_TOGETHER = 8
"""Ranks of one suspect that a link repairs one by one; of more the list would be unreadable."""
_PAUSES = (
    FindingKind.GC_PAUSE,
    FindingKind.DATA_STALL,
    FindingKind.CHECKPOINT_STALL,
    FindingKind.HOST_STALL,
)
"""Ranks that stop are slow for those that wait; each is a cause that ``--fix`` takes."""
ALL_STRAGGLERS = "stragglers"
"""How ``--fix`` calls all slow ranks together."""
_FACTORS = ("1.1x", "1.25x", "1.5x", "2x", "4x")
_PLACES = {"rank": "rank", "stage": "stage", "link": "link", "group_id": "group", "axis": "axis"}
"""Of a cause, what names its place, and how ``--fix`` calls that; the first that it has counts."""


def suspects(run: Diagnosis) -> list[dict[str, Any]]:
    """Return the slow ranks, stages and clocks that findings name, and ranks that stop; most costly first."""
    table: dict[Any, Row] = {row["rank"]: row for row in records_to_json(run.stragglers)}
    slow = [found for found in find_stragglers(run).findings if found.kind not in ENDS]
    named = [
        found
        for found in run.findings
        if found in slow or (found.kind in _PAUSES and ranks_named(found.where))
    ]
    return [_suspect(run, table, found) for found in named]


def _suspect(run: Diagnosis, table: Mapping[Any, Row], found: Finding) -> dict[str, Any]:
    ranks = ranks_named(found.where)
    # The slowdown of a rank that stops is not that of its computing.
    rows = [table[rank] for rank in ranks if rank in table and found.kind not in _PAUSES]
    first, last = found.where.get("steps") or (None, None)
    return {
        "kind": str(found.kind),
        "severity": str(found.severity),
        "where": {name: value for name, value in found.where.items() if name != "steps"},
        "ranks": ranks,
        "claim": str(found.claim),
        "slowdown": _largest(rows, "slowdown"),
        "excess_ns": _largest(rows, "excess_ns"),
        "cost_frac": found.cost_frac,
        "returns_frac": found.returns_frac,
        "returns_interval": found.returns_interval,
        "first_step": first,
        "last_step": last,
        "slow_steps": len(found.steps) or None,
        "steps": run.run.get("steps"),
        "is_to_the_end": last is not None and last == run.run.get("last_step"),
        "confidence": found.confidence,
        "evidence": [str(fact) for fact in found.evidence],
        "remedy": str(found.remedy),
        "fixes": _fixes_of(found, ranks),
    }


def _largest(rows: list[Row], name: str) -> float | None:
    return max((float(row[name]) for row in rows if row[name] is not None), default=None)


def _fixes_of(found: Finding, ranks: list[int]) -> list[str]:
    """Return what repairs a suspect in a replay; nothing where that is no place of ``--fix``."""
    if found.kind in _PAUSES:
        return [str(found.kind)]
    if 0 < len(ranks) <= MOST_FIXED_TOGETHER:
        return [f"rank={rank}" for rank in ranks]
    if "host" in found.where:
        return [f"host={found.where['host']}"]
    return [f"stage={found.where['stage']}"] if "stage" in found.where else []


def steps_to_show(run: Diagnosis, fixes: Sequence[str], analysed: Sequence[int]) -> list[int]:
    """Return the analysed steps in which all that is repaired was so; all of them where there is none.

    A step in which a rank that is slow now and then was not slow looks the same with it repaired.
    """
    shown = set(analysed)
    for found in run.findings:
        if _is_repaired(found, fixes):
            shown &= _steps_of(found) or shown
    return sorted(shown) or list(analysed)


def _is_repaired(found: Finding, fixes: Sequence[str]) -> bool:
    if found.kind is FindingKind.STRAGGLER_RANK and ALL_STRAGGLERS in fixes:
        return True
    return found.kind in fixes or not set(fixes).isdisjoint(
        _fixes_of(found, ranks_named(found.where))
    )


def _steps_of(found: Finding) -> set[int]:
    """Return the steps in which a finding holds; none where that is not known."""
    if found.steps or "steps" not in found.where:
        return set(found.steps)
    first, last = found.where["steps"]
    return set(range(first, last + 1))


class Choice(NamedTuple):
    """One repair that a replay can try."""

    fix: str
    label: str
    gain_frac: float | None = None
    """What repairing it alone returns, by the replays of the diagnosis; None for what is no cause."""


def found_choices(run: Diagnosis) -> list[Choice]:
    """Return the repairs of the causes that were found, those that return most first."""
    by_gain = sorted(shown_causes(run), key=lambda cause: -cause.removal_gain_frac)
    choices: dict[str, Choice] = {}
    for cause in by_gain:
        fix = _fix_of(cause)
        if fix is not None and fix not in choices:
            name = " ".join(filter(None, (cause.kind.replace("_", " "), place_words(cause.where))))
            choices[fix] = Choice(fix, name, max(cause.removal_gain_frac, 0.0))
    return list(choices.values())


def _fix_of(cause: Cause) -> str | None:
    where: Mapping[str, Any] = cause.where
    for key, name in _PLACES.items():
        if key in where:
            return f"{name}={where[key]}"
    return cause.kind if cause.kind in CAUSES else None


def place_choices(run: Diagnosis, trace: Trace) -> dict[str, list[Choice]]:
    """Return every place of the run that can be repaired, by kind, whether it is a cause or not."""
    stages = sorted({int(stage) for stage in run.stragglers["pp"] if stage >= 0})
    return {
        "Causes": [Choice(cause, cause.replace("_", " ")) for cause in CAUSES],
        "Ranks": [Choice(f"rank={rank}", f"rank {rank}") for rank in trace.ranks],
        "Stages": [Choice(f"stage={stage}", f"stage {stage}") for stage in stages],
        "Hosts": [
            Choice(f"host={host}", f"host {host}") for host in sorted(set(trace.clocks.values()))
        ],
        "Axes": [
            Choice(f"axis={axis}", f"{axis_label(axis)} communication") for axis in axes_of(run)
        ],
    }


def axes_of(run: Diagnosis) -> list[str]:
    """Return the axes along which the run communicated."""
    seen = set(run.groups["axis"].astype(str))
    return [axis.value for axis in Axis if axis.value in seen and axis is not Axis.OTHER]


class Knob(NamedTuple):
    """One setting that a replay can try."""

    name: str
    label: str
    example: str
    values: tuple[str, ...] = ()
    """All values that it takes, or usual ones; empty for a number or text."""


def knobs(run: Diagnosis) -> Iterator[Knob]:
    """Yield the settings that apply to a run, as ``meshscope whatif --set`` names them."""
    if run.run.get("schedule"):
        yield Knob("microbatches", "Microbatches", "64")
        if int(run.run.get("pp") or 1) > 1:  # type: ignore[call-overload]
            yield Knob("schedule", "Schedule", "zb-h1", tuple(map(str, SCHEDULES)))
            yield Knob("chunks", "Chunks a rank", "2")
            yield Knob("layers", "Layers by stage", "9,8,8,7")
    yield Knob("compute", "Compute faster by", "1.1x", _FACTORS)
    axes = axes_of(run)
    for axis in axes:
        yield Knob(f"link.{axis}", f"{axis_label(axis)} links faster by", "2x", _FACTORS)
    for axis in axes:
        yield Knob(f"dtype.{axis}", f"{axis_label(axis)} type", "bf16", tuple(TYPE_BYTES))
    if Axis.DP.value in axes:
        yield Knob("bucket.dp", "DP bucket", "25MB")
        yield Knob("hierarchy.dp", "DP sum in two levels", "on", ("on",))
