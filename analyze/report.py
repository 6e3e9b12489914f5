"""The diagnosis as text, Markdown or JSON, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import Any

from .results import Bar, Cause, Diagnosis, Finding
from .words import counted

BAR_WIDTH = 32
_LABELS = {
    "useful": "useful model FLOPs at peak",
    "compute_overhead": "compute beyond that",
    "unattributed": "unattributed",
    "other": "other host work",
    "exposed_memcpy": "exposed copies",
}


def to_json(result: Diagnosis) -> dict[str, Any]:
    """Return the versioned JSON form; keys may be added, these stay."""
    use = result.utilization
    return {
        "version": 1,
        "run": result.run,
        "step_time_ns": result.step_time_ns,
        "mfu": use.mfu,
        "utilization": {
            "mfu": use.mfu,
            "hfu": use.hfu,
            "flops_per_step": use.flops_per_step,
            "flops_convention": use.flops_convention,
            "peak_flops": use.peak_flops,
            "peak_source": use.peak_source,
            "tokens_per_s": use.tokens_per_s,
            "unknown_because": use.unknown_because,
        },
        "waterfall": [
            {"class": bar.name, "frac": bar.frac, "dur_ns": bar.dur_ns} for bar in result.waterfall
        ],
        "causes": [_cause(cause) for cause in result.causes],
        "findings": [_finding(finding) for finding in result.findings],
        "bubble": {
            "measured_frac": result.bubble.measured_frac,
            "ideal_frac": result.bubble.ideal_frac,
            "unknown_because": result.bubble.unknown_because,
        },
        "ranks": _records(result.stragglers),
        "memory": _records(result.memory),
        "groups": _records(result.groups),
        "metrics": result.metrics,
        "model_error_frac": result.model_error_frac,
        "limits": list(result.limits),
    }


def _cause(cause: Cause) -> dict[str, Any]:
    return {
        "kind": cause.kind,
        "where": dict(cause.where),
        "share_frac": cause.share_frac,
        "removal_gain_frac": cause.removal_gain_frac,
        "direct_ns": cause.direct_ns,
        "induced_wait_ns": cause.induced_wait_ns,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "where": dict(finding.where),
        "claim": finding.claim,
        "cost_frac": finding.cost_frac,
        "removal_gain_frac": finding.removal_gain_frac,
        "confidence": finding.confidence,
        "evidence": list(finding.evidence),
        "remedy": finding.remedy,
    }


def _records(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a frame with missing values as None."""
    rows: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return rows


def to_text(result: Diagnosis, *, markdown: bool = False) -> str:
    """Return the report for people: header, waterfall, findings, ranks, limits."""
    heading = "## {}" if markdown else "{}"
    blocks = [
        (f"# meshscope diagnosis of {result.run['run_id']}" if markdown else None, _header(result)),
        ("Where the step time went", _waterfall(result.waterfall, markdown=markdown)),
        ("Findings, in the order to look at them", _findings(result.findings, markdown=markdown)),
        ("Causes by replay", _causes(result, markdown=markdown)),
        ("Ranks, most harmful first", _ranks(result, markdown=markdown)),
        ("Memory by stage", _memory(result, markdown=markdown)),
        (
            "What this result could not see",
            [f"- {limit}" for limit in result.limits] or ["- nothing known"],
        ),
    ]
    lines: list[str] = []
    for title, body in blocks:
        body = list(body)
        if not body:
            continue
        if title:
            lines += [title if title.startswith("#") else heading.format(title)]
        if markdown:
            lines.append("")
        lines += [*body, ""]
    return "\n".join(lines).rstrip()


def _header(result: Diagnosis) -> Iterator[str]:
    run, use = result.run, result.utilization
    mesh = " x ".join(
        f"{axis.upper()}{run[axis]}"
        for axis in ("tp", "pp", "dp", "cp")
        if run.get(axis) not in (None, 1)
    )
    world = run.get("world_size")
    yield (
        f"{run['run_id']}: {run['captured_ranks']} of {world or 'an unknown number of'} ranks"
        f"{', ' + mesh if mesh else ''}"
        f"{', ' + str(run['schedule']) if run.get('schedule') not in (None, 'none') else ''}"
        f"{', ' + str(run['microbatches']) + ' microbatches' if run.get('microbatches') else ''}"
        f"; {run['steps']} steps ({run['first_step']}..{run['last_step']}) of {result.step_time_ns / 1e6:.2f} ms"
    )
    if use.mfu is None:
        yield f"MFU unknown: {use.unknown_because}"
    else:
        yield (
            f"MFU {use.mfu:.2%} ({use.flops_convention} FLOPs; peak {use.peak_flops or 0:.3g} flop/s: "
            f"{use.peak_source}); {use.tokens_per_s or 0:,.0f} tokens/s"
        )
    bubble = result.bubble
    if bubble.measured_frac is not None:
        ideal = (
            f"{bubble.ideal_frac:.1%}" if bubble.ideal_frac is not None else bubble.unknown_because
        )
        yield f"Waiting on the pipeline {bubble.measured_frac:.1%} of the step; the schedule's own bubble: {ideal}"


def _waterfall(bars: tuple[Bar, ...], *, markdown: bool) -> Iterator[str]:
    if markdown:
        yield "| class | share | ms per step |"
        yield "|---|---:|---:|"
    for bar in bars:
        label = label_of(bar.name)
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


def label_of(name: str) -> str:
    """Return the words for a class of the waterfall."""
    if name in _LABELS:
        return _LABELS[name]
    if name.startswith("exposed_"):
        _, axis, part = name.split("_")
        return f"exposed {axis} {'waiting for peers' if part == 'wait' else 'transfer'}"
    return name.replace("_", " ")


def _findings(findings: tuple[Finding, ...], *, markdown: bool) -> Iterator[str]:
    if not findings:
        yield "  nothing that costs 1 % of the step or more"
    for number, finding in enumerate(findings, start=1):
        cost = (
            [f"costs {finding.cost_frac:.1%} of the step"] if finding.cost_frac is not None else []
        )
        if finding.removal_gain_frac is not None:
            cost.append(f"fixing it alone returns {finding.removal_gain_frac:.1%}")
        claim = f"**{finding.claim}**" if markdown else finding.claim
        yield f"{number}. [{finding.severity}] {finding.kind}: {claim}"
        if cost:
            yield f"   - {'; '.join(cost)}; confidence {finding.confidence:.0%}"
        yield from (f"   - {line}" for line in finding.evidence)
        yield f"   - do: {finding.remedy}"


def _causes(result: Diagnosis, *, markdown: bool) -> Iterator[str]:
    if not result.causes:
        return
    if markdown:
        yield "| cause | share of step | removal gain | direct ms | induced wait ms |"
        yield "|---|---:|---:|---:|---:|"
    else:
        yield f"  {'cause':<34} {'share':>8} {'gain':>8} {'direct':>12} {'induced wait':>16}"
    for cause in result.causes:
        place = " ".join(f"{key} {value}" for key, value in cause.where.items())
        name = f"{cause.kind.replace('_', ' ')} {place}".strip()
        cells = (
            cause.share_frac,
            cause.removal_gain_frac,
            cause.direct_ns / 1e6,
            cause.induced_wait_ns / 1e6,
        )
        if markdown:
            yield "| {} | {:.2%} | {:.2%} | {:.3f} | {:.3f} |".format(name, *cells)
        else:
            yield "  {:<34} {:>8.2%} {:>8.2%} {:>9.3f} ms {:>13.3f} ms".format(name, *cells)


def _ranks(result: Diagnosis, *, markdown: bool, most: int = 8) -> Iterator[str]:
    frame = result.stragglers.head(most)
    if markdown:
        yield "| rank | pp | dp | tp | own work vs peers | excess ms/step | waited ms | came early ms | made others wait ms | arrived last |"
        yield "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    else:
        yield f"  {'rank':>5} {'pp':>3} {'dp':>3} {'tp':>3} {'vs peers':>9} {'excess/step':>13} {'waited':>12} {'came early':>12} {'made wait':>12} {'arrived last':>13}"
    for row in frame.to_dict("records"):
        slowdown = "unknown" if isnan(row["slowdown"]) else f"{row['slowdown']:.3f} x"
        excess = "unknown" if isnan(row["excess_ns"]) else f"{row['excess_ns'] / 1e6:+.3f} ms"
        place = ["-" if row[axis] < 0 else str(row[axis]) for axis in ("pp", "dp", "tp")]
        cells = (
            row["rank"],
            *place,
            slowdown,
            excess,
            row["wait_ns"] / 1e6,
            row["early_ns"] / 1e6,
            row["wait_caused_ns"] / 1e6,
        )
        last = f"{row['arrived_last']}/{row['collectives']}"
        if markdown:
            yield "| {} | {} | {} | {} | {} | {} | {:.3f} | {:.3f} | {:.3f} | {} |".format(
                *cells, last
            )
        else:
            yield "  {:>5} {:>3} {:>3} {:>3} {:>9} {:>13} {:>9.1f} ms {:>9.1f} ms {:>9.1f} ms {:>13}".format(
                *cells, last
            )
    if len(result.stragglers) > most:
        yield f"  … and {len(result.stragglers) - most} more ranks (--format json has all)"


def _memory(result: Diagnosis, *, markdown: bool) -> Iterator[str]:
    if result.memory.empty:
        return
    if markdown:
        yield "| stage | ranks | allocator peak | resident set | share of capacity |"
        yield "|---:|---:|---:|---:|---:|"
    for row in result.memory.to_dict("records"):
        cells = (
            "all stages" if row["stage"] < 0 else f"stage {row['stage']}",
            counted(row["ranks"], "rank"),
            _size(row["peak_bytes"]),
            _size(row["rss_bytes"]),
            "unknown"
            if row["peak_frac"] != row["peak_frac"] or row["peak_frac"] is None
            else f"{row['peak_frac']:.1%}",
        )
        if markdown:
            yield "| {} | {} | {} | {} | {} |".format(*cells)
        else:
            yield "  {} ({}): allocator peak {}, resident set {}, {} of capacity".format(*cells)


def _size(value: Any) -> str:
    """Return bytes in GiB or MiB, or the word unknown."""
    if value is None or value != value or str(value) == "<NA>":
        return "unknown"
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
