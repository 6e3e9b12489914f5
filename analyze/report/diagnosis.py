"""The diagnosis as text."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from ..all_clear import nothing_found, untold_of
from ..attempts import attempts_text
from ..capture.trace import SYNTHETIC
from ..labels import class_label, place_words
from ..memory import CATEGORIES
from ..results import Bar, Diagnosis, Finding
from ..text_table import text_table
from ..words import counted, is_missing
from .amounts import RANKS_TITLE, left_out, milliseconds, not_known, size
from .page import page

BAR_WIDTH = 32
_MOST_RANKS = 8


def to_text(result: Diagnosis, *, markdown: bool = False) -> str:
    """Return the report for people: header, waterfall, findings, ranks, limits."""
    heading = "## {}" if markdown else "{}"
    blocks = [
        (f"# meshscope diagnosis of {result.run['run_id']}" if markdown else None, _header(result)),
        ("Where the step time went", _waterfall(result.waterfall, markdown=markdown)),
        ("Findings, in the order to look at them", _findings(result, markdown=markdown)),
        ("Causes by replay", _causes(result, markdown=markdown)),
        (RANKS_TITLE, _ranks(result, markdown=markdown)),
        ("Memory by stage", _memory(result, markdown=markdown)),
        (
            "What this result could not see",
            [f"- {limit}" for limit in result.limits] or ["- nothing known"],
        ),
    ]
    lines: list[str] = []
    for title, rows in blocks:
        body = list(rows)
        if not body:
            continue
        if title:
            lines += [title if title.startswith("#") else heading.format(title)]
        if markdown:
            lines.append("")
        lines += [*body, ""]
    return page(lines, markdown=markdown).rstrip()


def _header(result: Diagnosis) -> Iterator[str]:
    run, use = result.run, result.utilization
    mesh = " x ".join(
        f"{axis.upper()}{run[axis]}"
        for axis in ("tp", "pp", "dp", "cp")
        if run.get(axis) not in (None, 1)
    )
    world, microbatches = run.get("world_size"), run.get("microbatches")
    if run.get("origin") == SYNTHETIC:
        yield "SYNTHETIC: all times below are simulated, nothing was measured"
    steps = "no steps"
    if run["steps"] and run["first_step"] is None:
        steps = f"no step marks, {result.step_time_ns / 1e6:.2f} ms in all"
    elif run["steps"]:
        steps = (
            f"{run['steps']} step{'' if run['steps'] == 1 else 's'} ({run['first_step']}..{run['last_step']}) "
            f"of {result.step_time_ns / 1e6:.2f} ms"
        )
    yield (
        f"{run['run_id']}: {run['captured_ranks']} of {world or 'an unknown number of'} ranks"
        f"{', ' + mesh if mesh else ''}"
        f"{', ' + str(run['schedule']) if run.get('schedule') not in (None, 'none') else ''}"
        f"{', ' + counted(microbatches, 'microbatch') if isinstance(microbatches, int) else ''}"
        f"; {steps}"
    )
    if text := attempts_text(run.get("attempts")):
        yield text
    if use.mfu is None:
        yield f"MFU unknown: {use.unknown_because}"
    else:
        yield (
            f"MFU {use.mfu:.2%} ({use.flops_convention} FLOPs; peak {use.peak_flops or 0:.3g} flop/s: "
            f"{use.peak_source}); {use.tokens_per_s or 0:,.0f} tokens/s"
        )
    mean, most = run.get("probe_cost_frac"), run.get("probe_cost_most_frac")
    if isinstance(mean, float) and isinstance(most, float):
        yield (
            f"The probe took {100 * mean:.2g} % of the time by its own measure, "
            f"at most {100 * most:.2g} % (rank {run['probe_cost_most_rank']})"
        )
    yield from _bubble(result)


def _bubble(result: Diagnosis) -> Iterator[str]:
    """Say how much of the waiting is the schedule's own; the ideal is a share of a shorter step."""
    bubble, waiting = result.bubble, result.waiting
    if bubble.measured_frac is None:
        return
    yield (
        f"Waiting on the pipeline {bubble.measured_frac:.1%} of the step; "
        + (
            "how much of it the schedule imposes is not known"
            if waiting is None
            else f"the schedule imposes {waiting.bubble_ns / result.step_time_ns:.1%} (by replay)"
        )
        + (
            f"; with equal stages and no jitter it is {bubble.ideal_frac:.1%} of a step that is shorter"
            if bubble.ideal_frac is not None
            else f"; {bubble.unknown_because}"
        )
    )


def _waterfall(bars: tuple[Bar, ...], *, markdown: bool) -> Iterator[str]:
    if not bars:
        return
    if markdown:
        yield "| class | share | ms per step |"
        yield "|---|---:|---:|"
    for bar in bars:
        label = class_label(bar.name)
        if markdown:
            yield f"| {label} | {bar.frac:.2%} | {bar.dur_ns / 1e6:.3f} |"
        else:
            fill = "#" * max(0, min(BAR_WIDTH, round(bar.frac * BAR_WIDTH)))
            yield f"  {label:<34} {bar.frac:>8.2%} {bar.dur_ns / 1e6:>12.3f} ms  {fill}"
    total, time = sum(bar.frac for bar in bars), sum(bar.dur_ns for bar in bars)
    if markdown:
        yield f"| **total** | {total:.2%} | {time / 1e6:.3f} |"
    else:
        yield f"  {'total':<34} {total:>8.2%} {time / 1e6:>12.3f} ms"


def _findings(result: Diagnosis, *, markdown: bool) -> Iterator[str]:
    findings = result.findings
    if not findings:
        yield f"  {nothing_found(result)}"
    for number, finding in enumerate(findings, start=1):
        cost = (
            [f"costs {finding.cost_frac:.1%} of the step"] if finding.cost_frac is not None else []
        )
        if finding.returns_frac is not None:
            cost.append(f"fixing it alone returns {finding.returns_frac:.1%}{_between(finding)}")
        claim = f"**{finding.claim}**" if markdown else finding.claim
        yield f"{number}. [{finding.severity}] {finding.kind}: {claim}"
        if cost:
            yield f"   - {'; '.join(cost)}; confidence {finding.confidence:.0%}"
        yield from (f"   - {line}" for line in finding.evidence)
        yield f"   - do: {finding.remedy}"
    if findings and result.run["steps"]:
        yield from not_known(untold_of(result), result.untold)


def _between(finding: Finding) -> str:
    """Return the interval of what fixing returns; empty where its error is not known."""
    if finding.returns_interval is None:
        return ""
    low, high = finding.returns_interval
    return f" (between {low:.1%} and {high:.1%})"


def _causes(result: Diagnosis, *, markdown: bool) -> list[str]:
    if not result.causes:
        return []
    table = _cause_table(result, markdown=markdown)
    waiting = result.waiting
    if waiting is None:
        return table
    step = result.step_time_ns
    account = (
        f"Waiting {waiting.measured_ns / step:.2%} of the step = {waiting.bubble_ns / step:.2%} "
        f"{result.bubble_words}, {waiting.induced_ns / step:+.2%} induced by the causes above, "
        f"{waiting.model_error_ns / step:+.2%} that the replay does not explain"
    )
    return [*table, "", account if markdown else f"  {account}"]


def _cause_table(result: Diagnosis, *, markdown: bool) -> list[str]:
    rows = [
        (
            ": ".join(filter(None, [cause.kind.replace("_", " "), place_words(cause.where)])),
            f"{cause.share_frac:.2%}",
            f"{cause.removal_gain_frac:.2%}",
            milliseconds(cause.direct_ns),
            milliseconds(cause.induced_wait_ns),
        )
        for cause in result.causes
    ]
    headers = ("cause", "share of step", "removal gain", "direct ms", "induced wait ms")
    return text_table(headers, rows, markdown=markdown)


def _ranks(result: Diagnosis, *, markdown: bool) -> list[str]:
    steps = result.run["steps"]
    if not isinstance(steps, int) or not steps:
        return []
    rows = [
        (
            row["rank"],
            *("-" if row[axis] < 0 else row[axis] for axis in ("pp", "dp", "tp")),
            "unknown" if isnan(row["slowdown"]) else f"{row['slowdown']:.3f} x",
            "unknown" if isnan(row["excess_ns"]) else f"{row['excess_ns'] / 1e6:+.3f}",
            *(
                milliseconds(row[name] / steps)
                for name in ("wait_ns", "early_ns", "wait_caused_ns")
            ),
            "unknown" if isnan(row["wait_ns"]) else f"{row['arrived_last']}/{row['collectives']}",
        )
        for row in result.stragglers.head(_MOST_RANKS).to_dict("records")
    ]
    unit = "ms" if result.run["first_step"] is None else "ms/step"
    headers = ["rank", "pp", "dp", "tp", "work vs peers", f"excess {unit}", f"waited {unit}"]
    headers += [f"came early {unit}", f"made others wait {unit}", "arrived last"]
    rest = left_out(len(result.stragglers) - _MOST_RANKS, "ranks")
    return [*text_table(headers, rows, markdown=markdown), *rest]


def _memory(result: Diagnosis, *, markdown: bool) -> list[str]:
    if result.memory.empty:
        return []
    shown = [name for name in CATEGORIES if result.memory[f"{name}_bytes"].notna().any()]
    rows = [
        (
            "all stages" if row["stage"] < 0 else f"stage {row['stage']}",
            row["ranks"],
            *(size(row[name]) for name in ("peak_bytes", "rss_bytes")),
            "unknown" if is_missing(row["peak_frac"]) else f"{row['peak_frac']:.1%}",
            *(size(row[f"{name}_bytes"]) for name in shown),
        )
        for row in result.memory.to_dict("records")
    ]
    headers = ("stage", "ranks", "allocator peak", "resident set", "of capacity", *shown)
    return text_table(headers, rows, markdown=markdown)
