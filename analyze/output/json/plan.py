"""The JSON form of a plan."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ...formulas.planning.memory import StageMemory
from ...formulas.planning.plan import JobPlan, reserved_bytes
from ...formulas.planning.terms import Category
from ...wording.limits import limits_to_json


def plan_to_json(plan: JobPlan, *, explain: bool = False) -> dict[str, Any]:
    """Return a plan as programs read it.

    Args:
        plan: The plan.
        explain: Give every term of every stage with its formula and source.
    """
    job = plan.job
    layout = {name: value for name, value in job.layout.to_json().items() if name != "order"}
    return {
        "version": 1,
        "parameters": plan.parameters,
        "active_parameters": plan.active_parameters,
        "flops_per_token": plan.flops_per_token,
        "recompute_frac": plan.recompute_frac,
        "layout": {
            **layout,
            "etp": job.etp,
            "schedule": job.schedule.value,
            "microbatches": job.microbatches,
            "microbatch_size": job.microbatch_size,
            "seq_len": job.model.seq_len,
            "zero": job.zero,
            "sequence_parallel": job.sequence_parallel,
            "recompute": job.recompute.value,
            "tied": job.model.tied,
            "fused_cross_entropy": job.fused_cross_entropy,
            "weight_bytes": job.weight_bytes,
            "gradient_bytes": job.gradient_bytes,
            "moment_bytes": job.moment_bytes,
        },
        "stages": [_stage(stage, explain=explain) for stage in plan.stages],
        "bubble_frac": plan.bubble_frac,
        "communication": [
            {**asdict(one), "axis": one.axis.value, "bytes_per_step": round(one.bytes_per_step)}
            for one in plan.volumes
        ],
        **limits_to_json(plan.limits),
    }


def _stage(stage: StageMemory, *, explain: bool) -> dict[str, Any]:
    low, expected, high = reserved_bytes(stage.allocated_bytes)
    sizes = {f"{category}_bytes": round(stage.total(category)) for category in Category}
    each = sum(sizes.values())
    counted = stage.parameters.total
    vocabulary = stage.parameters.vocabulary
    states = sum(sizes[f"{name}_bytes"] for name in ("parameters", "gradients", "optimizer"))
    found: dict[str, Any] = {
        "stage": stage.stage,
        "stages": list(stage.stages),
        "layers": stage.layers,
        "parameters": counted,
        **sizes,
        "embedding_bytes": round(states * vocabulary / counted) if counted else 0,
        "allocated_bytes": each,
        "reserved_bytes": round(expected),
        "reserved_low_bytes": round(low),
        "reserved_high_bytes": round(high),
        "in_flight": round(stage.in_flight, 6),
        "in_flight_chunks": stage.in_flight_chunks,
        "peak_moment": stage.moment,
    }
    if explain:
        found["terms"] = [
            {
                "category": term.category.value,
                "name": str(term.name),
                "bytes": round(term.size_bytes),
                "formula": term.formula,
                "source": term.source,
            }
            for term in stage.terms
        ]
    return found
