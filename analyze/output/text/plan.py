"""A plan as a document: memory by stage, bubble, FLOPs and volumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...wording.quantities import percent
from ..document import Block, Heading, Lines, Table, section
from .amounts import limits_section

_COLUMNS = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers")
_MOST_STAGES = 32


def plan_document(result: dict[str, Any]) -> list[Block]:
    """Return the plan for people, sizes in GB (10^9 bytes)."""
    layout = result["layout"]
    axes = " ".join(f"{name}{layout[name]}" for name in ("tp", "pp", "dp", "cp", "ep", "vpp"))
    return [
        Heading(f"Plan: {axes}, {layout['schedule']}"),
        Lines([*_job_lines(result), *_fit_lines(result)]),
        *section(_STAGES, _stages(result)),
        *_volumes(result),
        *_terms(result),
        *limits_section(result["limits"]),
    ]


_STAGES = "GB (10^9 bytes) on one GPU of each stage, at the highest moment of a step"


def _job_lines(result: dict[str, Any]) -> Iterator[str]:
    layout = result["layout"]
    flops = ", ".join(f"{name} {x:.4g}" for name, x in result["flops_per_token"].items())
    yield (
        f"parameters       {result['parameters']:,}, of which a token passes "
        f"{result['active_parameters']:,}"
    )
    yield (
        f"step             {layout['microbatches']} microbatches of {layout['microbatch_size']} x "
        f"{layout['seq_len']:,} tokens; ZeRO-{layout['zero']}, recompute {layout['recompute']}"
    )
    yield f"ideal bubble     {percent(result['bubble_frac'])} of the step"
    yield f"FLOPs a token    {flops}"
    if result["recompute_frac"]:
        yield f"recomputation    + {percent(result['recompute_frac'])} compute"


def _fit_lines(result: dict[str, Any]) -> Iterator[str]:
    fit = result.get("memory")
    if fit is None:
        return
    most, cap = fit["needed_bytes"] / 1e9, fit["cap_bytes"] / 1e9
    if fit["fits"]:
        yield f"memory           fits: {most:.2f} GB of {cap:.2f} GB on stage {fit['stage']}"
        return
    yield f"memory           does not fit: {most:.2f} GB on stage {fit['stage']}, cap {cap:.2f} GB"
    for one in fit["alternatives"]:
        word = "fits" if one["fits"] else "too much"
        yield f"  with {one['change']}: {one['needed_bytes'] / 1e9:.2f} GB ({word})"


def _stages(result: dict[str, Any]) -> Table:
    headers = ["stage", "layers", "in flight", *_COLUMNS, "allocated", "reserved"]
    rows = [
        [
            stage["stage"],
            stage["layers"],
            f"{stage['in_flight']:.4g}",
            *(f"{stage[f'{name}_bytes'] / 1e9:.2f}" for name in _COLUMNS),
            f"{stage['allocated_bytes'] / 1e9:.2f}",
            f"{stage['reserved_bytes'] / 1e9:.2f} ({stage['reserved_low_bytes'] / 1e9:.2f}-"
            f"{stage['reserved_high_bytes'] / 1e9:.2f})",
        ]
        for stage in result["stages"]
    ]
    shown = rows[: _MOST_STAGES - 1] + rows[-1:] if len(rows) > _MOST_STAGES else rows
    return Table(headers, shown)


def _volumes(result: dict[str, Any]) -> list[Block]:
    if not result["communication"]:
        return [Lines(["Communication: none"])]
    rows = [
        [
            one["axis"],
            one["kind"],
            f"{one['count_per_step']:,}",
            f"{one['bytes_per_step'] / 1e9:.3f}",
            one["formula"],
        ]
        for one in result["communication"]
    ]
    headers = ["axis", "kind", "operations", "GB", "each"]
    return section("Communication of one rank in a step", Table(headers, rows))


def _terms(result: dict[str, Any]) -> Iterator[Block]:
    """Yield the terms of the ends: stages between them are alike but for what is in flight."""
    explained = [stage for stage in result["stages"] if "terms" in stage]
    more = f"… and {len(explained) - 3} more stages (--format json has all)"
    shown = [*explained[:2], *explained[2:][-1:]]
    for stage in shown:
        rows = [
            [
                one["name"],
                one["category"],
                f"{one['bytes'] / 1e9:.3f}",
                one["formula"],
                one["source"],
            ]
            for one in stage["terms"]
        ]
        is_last = stage is shown[-1] and len(explained) > 3
        table = Table(
            ["term", "counts as", "GB", "formula", "source"], rows, notes=[more] if is_last else []
        )
        title = f"Stage {stage['stage']}: terms, highest at: {stage['peak_moment']}"
        yield from section(title, table)
