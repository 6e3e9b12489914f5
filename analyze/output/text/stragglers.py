"""The straggler analyses as documents."""

from __future__ import annotations

from collections.abc import Iterator

from ...explain.straggler_metrics import PublishedMetrics, Repair, Shares
from ...findings.rules.grading import MIN_COST
from ...tables.results import Finding
from ...wording.limits import limit_texts
from ...wording.quantities import percent
from ...wording.words import counted, is_missing
from ..document import Block, Item, Lines, Listing, Table, Verbatim, section
from ..straggler_tables import Stragglers
from .amounts import RANKS_TITLE, limits_section, milliseconds

MOST_RANKS = 8
MOST_STEPS = 8
MOST_COLUMNS = 16
APART = 0.001
"""Share by which the mean of the listed lengths differs from the step time from which it is said why."""
_SHADES = " .:-=+*#%@"
_DARKEST = 1.5
"""Slowdown of the last shade; the first one is 1, as on the published colour scale."""


def stragglers_document(result: Stragglers) -> list[Block]:
    """Return ranks, stages and steps as tables, with what each straggler costs."""
    return [
        *section("Stragglers", *_claims(result)),
        *section(RANKS_TITLE, _ranks(result)),
        *section("Stages", _stages(result)),
        *section("Slowest steps", _steps(result)),
        *limits_section(result.limits),
    ]


def published_document(metrics: PublishedMetrics) -> list[Block]:
    """Return the published metrics as short tables, with a map of the workers."""
    title = f"Published straggler metrics of {metrics.meta['trial_name']}"
    return [
        *section(title, Lines(list(_summary(metrics)))),
        *section("What repairing some workers returns", _repairs(metrics)),
        *_parts(metrics),
        *limits_section(metrics.limits),
    ]


def _parts(metrics: PublishedMetrics) -> Iterator[Block]:
    """Yield the slowdown by operation, stage, replica and worker, where it is large enough to be shown."""
    parts = metrics.slowdown_parts
    if parts is None:
        title = "By operation, stage and replica"
        yield from section(title, Lines(["Not given: S is below 1.03"]))
        return
    yield from section("By operation type (S_t)", _shares("operation", parts.optype))
    yield from section("By stage (S_stage)", _shares("stage", parts.stage))
    yield from section("By replica (S_dp)", _shares("replica", parts.dp_rank))
    title = "Workers: S_w by stage (rows) and replica (columns)"
    yield from section(title, Verbatim(list(_map(metrics))))


def _claims(result: Stragglers) -> Iterator[Block]:
    if result.unknown_causes:
        why = Item(
            "Which ranks make the others wait: not known", limit_texts(result.unknown_causes)
        )
        yield Listing([why])
    elif not result.findings:
        alone = result.run.get("world_size") == 1
        yield Lines(
            ["the job has one rank: nobody waits for another"]
            if alone
            else [f"no slow rank or stage costs {percent(MIN_COST, 0)} of the time or more"]
        )
    yield Listing([_item(found) for found in result.findings], first_number=1)


def _item(found: Finding) -> Item:
    known = [
        f"{name} {percent(value, 2)}"
        for name, value in (
            ("share of the step", found.cost_frac),
            ("repairing it alone returns", found.returns_frac),
        )
        if value is not None
    ]
    facts = [*(["; ".join(known)] if known else []), f"do: {found.remedy}"]
    return Item(found.claim, facts, mark=f"[{found.severity}]")


def _ranks(result: Stragglers) -> Table:
    steps = max(1, len(result.steps))
    rows = [
        (
            f"{row['rank']} *" if row["named"] else row["rank"],
            *(row[axis] if row[axis] >= 0 else "?" for axis in ("pp", "dp", "tp")),
            percent(row["slowdown"] - 1.0) if not is_missing(row["slowdown"]) else "",
            *(_number(row[name], ".2%") for name in ("removal_gain_frac", "share_frac")),
            *(
                "" if is_missing(row[name]) else milliseconds(row[name])
                for name in ("direct_ns", "induced_wait_ns")
            ),
            *(milliseconds(row[name] / steps) for name in ("wait_ns", "wait_caused_ns")),
            "unknown"
            if is_missing(row["wait_ns"])
            else f"{row['arrived_last']:.0f}/{row['collectives']:.0f}",
        )
        for row in result.ranks.head(MOST_RANKS).to_dict("records")
    ]
    unit = "ms/step" if len(result.steps) else "ms"
    headers = (
        *("rank", "pp", "dp", "tp", "slower than peers", "removal gain", "share", "direct ms"),
        *("induced wait ms", f"waited {unit}", f"others waited {unit}", "last"),
    )
    notes = []
    more = len(result.ranks) - MOST_RANKS
    if more > 0:
        notes.append(f"… and {counted(more, 'rank')} more")
    if result.ranks["named"].any():
        one = "one step" if len(result.steps) else "the whole capture"
        notes.append(f"* named above; all times are of {one}")
    return Table(headers, rows, notes=notes)


def _stages(result: Stragglers) -> Table:
    if len(result.stages) < 2:
        return Table((), ())
    rows = [
        (row["stage"], row["ranks"], milliseconds(row["compute_ns"]))
        for row in result.stages.to_dict("records")
    ]
    return Table(("stage", "ranks", "compute per step ms (median)"), rows)


def _steps(result: Stragglers) -> Table:
    slowest = result.steps.sort_values("step_ns", ascending=False).head(MOST_STEPS)
    rows = [
        (
            row["step"],
            milliseconds(row["step_ns"]),
            "unknown" if is_missing(row["slowest_rank"]) else row["slowest_rank"],
            milliseconds(row["own_ns"]),
            milliseconds(row["median_own_ns"]),
        )
        for row in slowest.to_dict("records")
    ]
    headers = ("step", "length ms", "busiest rank", "its own time ms", "median own time ms")
    notes = []
    mean_ns, whole_ns = float(result.steps["step_ns"].mean()), result.step_time_ns
    if rows and whole_ns is not None and abs(mean_ns - whole_ns) > APART * whole_ns:
        notes.append(
            f"length: of the rank that takes longest, {milliseconds(mean_ns)} ms on average; ranks begin and "
            f"end steps apart, and the job does one in {milliseconds(whole_ns)} ms"
        )
    return Table(headers, rows, notes=notes)


def _summary(metrics: PublishedMetrics) -> Iterator[str]:
    steps = metrics.step_slowdown
    yield (
        f"S {metrics.slowdown:.4f} over {counted(len(steps), 'step')} "
        f"(per step {steps.min():.4f} to {steps.max():.4f}): "
        f"stragglers waste {percent(metrics.waste_frac, 2)} of the time"
    )
    yield (
        f"step {metrics.measured_s.mean():.4f} s as recorded, {metrics.recorded_s.mean():.4f} s without "
        f"launch delays (x {metrics.launch_slowdown:.4f}), {metrics.ideal_s.mean():.4f} s ideal"
    )
    yield "ideal: the mean of each type of work, the median of each type of communication"


def _repairs(metrics: PublishedMetrics) -> Table:
    def row(name: str, repair: Repair) -> tuple[str, str, str]:
        return (
            name,
            _number(repair.removed_frac, ".2%", unknown="unknown"),
            _number(repair.added_frac, ".2%", unknown="unknown"),
        )

    rows = [
        row("worst 3 % of workers (M_W)", metrics.worst_workers),
        row("last stage (M_S)", metrics.last_stage),
    ]
    return Table(("workers", "of the slowdown goes", "of it they cause alone"), rows)


def _shares(name: str, shares: Shares) -> Table:
    ranked = sorted(shares.overall.items(), key=lambda item: -item[1])[:MOST_RANKS]
    rows = [(label, f"{value:.4f}") for label, value in ranked]
    return Table((name, "slowdown"), rows)


def _map(metrics: PublishedMetrics) -> Iterator[str]:
    slowdowns = metrics.worker_slowdowns()
    dp_ranks = sorted({dp_rank for dp_rank, _ in slowdowns})
    stages = sorted({stage for _, stage in slowdowns})
    numbered = len(dp_ranks) <= MOST_COLUMNS
    if numbered:
        yield "stage" + "".join(f"{dp_rank:>7}" for dp_rank in dp_ranks)
    for stage in stages:
        values = [slowdowns[dp_rank, stage] for dp_rank in dp_ranks]
        shades = "".join(_shade(value) for value in values)
        numbers = "".join(f"{value:>7.3f}" for value in values) if numbered else ""
        yield f"{stage:>5}{numbers}  |{shades}|"
    yield f"shades from 1 to {_DARKEST}: |{_SHADES}|"
    worst = sorted(slowdowns, key=lambda place: (-slowdowns[place], metrics.ranks[place]))[:3]
    yield "worst: " + ", ".join(
        f"rank {metrics.ranks[place]} (stage {place[1]}, replica {place[0]}) {slowdowns[place]:.4f}"
        for place in worst
    )


def _shade(value: float) -> str:
    place = (value - 1.0) / (_DARKEST - 1.0) * (len(_SHADES) - 1)
    return _SHADES[min(max(round(place), 0), len(_SHADES) - 1)]


def _number(value: float | None, form: str, unknown: str = "") -> str:
    return unknown if value is None or is_missing(value) else format(value, form)
