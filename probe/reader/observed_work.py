"""What ran of a model, on average over the ranks: an evaluation may run on one rank alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..schema.manifest import OBSERVED_KEY

_OF_PASSES = ("ran_products", "ran_attention", "ran_without", "forward_rows")
"""What grows with the passes of a rank."""


def observed_of_ranks(observed: object, manifests: Mapping[int, Mapping[str, Any]]) -> object:
    """Return what was observed of the passes of a job, as a mean over its ranks.

    Unchanged where some other rank tells nothing, or other kinds of things: stages of a pipeline run other parts of
    the model, and then none of them tells for all.

    Args:
        observed: What rank 0 told.
        manifests: By rank.
    """
    others = [_told(manifest) for rank, manifest in manifests.items() if rank != 0]
    if not isinstance(observed, Mapping) or not others:
        return observed
    known = [own for own in others if own is not None and _form(own) == _form(observed)]
    if len(known) < len(others):
        return observed
    every = [observed, *known]
    means = {name: sum(own.get(name, 0.0) for own in every) / len(every) for name in _OF_PASSES}
    return {**observed, **{name: mean for name, mean in means.items() if mean}}


def _told(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    notes = manifest.get("annotations")
    found = notes.get(OBSERVED_KEY) if isinstance(notes, dict) else None
    if not isinstance(found, dict):
        return None
    values = [found.get(name, 0.0) for name in _OF_PASSES]
    is_sound = all(type(value) in (int, float) and 0 <= value < float("inf") for value in values)
    return found if is_sound else None


def _form(told: Mapping[str, Any]) -> frozenset[str]:
    """Return what is told at all, but for passes that a rank may not have."""
    return frozenset(name for name, value in told.items() if value) - {
        "ran_without",
        "forward_rows",
    }
