"""A plan as text: memory by stage, bubble, FLOPs and volumes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...wording.text_table import text_table
from .amounts import limit_lines
from .page import page

_COLUMNS = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers")
_MOST_STAGES = 32


def plan_to_text(result: dict[str, Any], *, markdown: bool = False) -> str:
    """Return the plan for people, sizes in GB (10^9 bytes)."""
    layout = result["layout"]
    axes = " ".join(f"{name}{layout[name]}" for name in ("tp", "pp", "dp", "cp", "ep", "vpp"))
    flops = ", ".join(f"{name} {x:.4g}" for name, x in result["flops_per_token"].items())
    lines = [
        f"# Plan: {axes}" if markdown else f"Plan: {axes}, {layout['schedule']}",
        "",
        f"parameters       {result['parameters']:,}, of which a token passes "
        f"{result['active_parameters']:,}",
        f"step             {layout['microbatches']} microbatches of {layout['microbatch_size']} x "
        f"{layout['seq_len']:,} tokens; ZeRO-{layout['zero']}, recompute {layout['recompute']}",
        f"ideal bubble     {result['bubble_frac']:.1%} of the step",
        f"FLOPs a token    {flops}",
    ]
    if result["recompute_frac"]:
        lines.append(f"recomputation    + {result['recompute_frac']:.1%} compute")
    lines += [*_fit_lines(result), "", *_stages(result, markdown=markdown)]
    lines += ["", *_volumes(result, markdown=markdown)]
    # Stages between the ends are alike but for what is in flight.
    shown = [stage for stage in result["stages"] if "terms" in stage]
    for stage in (*shown[:2], *shown[2:][-1:]):
        lines += _terms(stage, markdown=markdown)
    if len(shown) > 3:
        lines += ["", f"  … and {len(shown) - 3} more stages (--format json has all)"]
    return page([*lines, *limit_lines(result["limits"])], markdown=markdown)


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


def _stages(result: dict[str, Any], *, markdown: bool) -> list[str]:
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
    title = "GB (10^9 bytes) on one GPU of each stage, at the highest moment of a step"
    return [f"### {title}" if markdown else title, *text_table(headers, shown, markdown=markdown)]


def _volumes(result: dict[str, Any], *, markdown: bool) -> list[str]:
    if not result["communication"]:
        return ["Communication: none"]
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
    title = "Communication of one rank in a step"
    headers = ["axis", "kind", "operations", "GB", "each"]
    return [f"### {title}" if markdown else title, *text_table(headers, rows, markdown=markdown)]


def _terms(stage: dict[str, Any], *, markdown: bool) -> list[str]:
    rows = [
        [one["name"], one["category"], f"{one['bytes'] / 1e9:.3f}", one["formula"], one["source"]]
        for one in stage["terms"]
    ]
    title = f"Stage {stage['stage']}: terms, highest at: {stage['peak_moment']}"
    headers = ["term", "counts as", "GB", "formula", "source"]
    table = text_table(headers, rows, markdown=markdown)
    return ["", f"### {title}" if markdown else title, *table]
