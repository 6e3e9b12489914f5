"""The JSON form of a balance."""

from __future__ import annotations

from typing import Any

from ...explain.balance import Balance, Priced
from ...explain.balance.settings import framework_settings
from ...wording.limits import limits_to_json


def balance_to_json(found: Balance) -> dict[str, Any]:
    """Return the present split and the proposals as programs read them."""
    certificate = None
    if found.busiest_ns is not None and found.bound_ns is not None:
        certificate = {
            "busiest_ns": found.busiest_ns,
            "bound_ns": found.bound_ns,
            "is_optimal": found.busiest_ns <= found.bound_ns * (1 + 1e-6),
        }
    return {
        "version": 1,
        "current": _split(found.current),
        "proposals": [
            {
                **_split(one),
                "gain_frac": one.gain_frac,
                "gain_low_frac": one.gain_low_frac,
                "gain_high_frac": one.gain_high_frac,
                "settings": framework_settings(one.layers, found.ranks),
            }
            for one in found.proposals
        ],
        "chunks": found.chunks,
        "certificate": certificate,
        **limits_to_json(found.limits),
    }


def _split(one: Priced) -> dict[str, Any]:
    held = one.memory_by_stage_bytes
    return {
        "layers": list(one.layers),
        "step_time_ns": one.step_time_ns,
        "memory_bytes": None if held is None else round(max(held)),
        "memory_by_stage_bytes": None if held is None else [round(size) for size in held],
        "fits": one.fits,
    }
