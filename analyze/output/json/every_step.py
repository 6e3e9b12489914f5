"""JSON form of the account of every step of a large run."""

from __future__ import annotations

from typing import Any

from ...every_step.joined import EveryStep, Joined
from ...wording.limits import limits_to_json
from ...wording.message import message_from_json


def every_step_to_json(found: EveryStep) -> dict[str, Any]:
    """Return the versioned JSON form; keys may be added, these stay."""
    return {
        "version": 1,
        "run": found.run.name,
        "ranks": found.ranks,
        "steps": [found.first, found.last],
        "step_count": found.steps,
        "step_time_ns": found.step_ns,
        "mfu": found.mfu,
        "mfu_unknown_because": None
        if found.mfu_unknown is None
        else str(message_from_json(found.mfu_unknown)),
        "classes": {one.kind: one.cost_ns for one in found.classes},
        "causes": [_joined(one, found.step_ns) for one in found.causes],
        "findings": [_joined(one, found.step_ns) for one in found.findings],
        "windows": [
            {
                "steps": [one.first, one.last],
                "step_count": one.steps,
                "step_time_ns": one.step_ns,
                "mfu": one.mfu,
                "classes": {part.kind: part.cost_ns for part in one.classes},
                "failed": one.failed or None,
                "unknown_causes": [str(message_from_json(said)) for said in one.unknown_causes],
            }
            for one in found.windows
        ],
        **limits_to_json([message_from_json(said) for said in found.limits]),
    }


def _joined(one: Joined, step_ns: float) -> dict[str, Any]:
    claim = one.claim
    return {
        "kind": one.kind,
        "where": dict(one.where),
        "cost_frac": None if one.cost_ns is None else one.cost_ns / step_ns,
        "removal_gain_frac": None if one.gain_ns is None else one.gain_ns / step_ns,
        "steps": [list(run) for run in one.steps],
        "dearest_steps": list(one.dearest),
        "dearest_ns": one.dearest_ns,
        "claim": None if claim is None else str(message_from_json(claim)),
        "claim_message": None if claim is None else dict(claim),
    }
