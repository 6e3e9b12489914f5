"""What can be stated about a job beside its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What is stated about a job beside its model; None: not stated."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    vpp: int | None = None
    microbatches: int | None = None
    microbatch_size: int | None = None
    global_batch_size: int | None = None
    seq_len: int | None = None
    layers: str | None = None
    """A number of layers, or counts by stage with commas between."""
    schedule: str | None = None
    zero: int | None = None
    recompute: str | None = None
    sequence_parallel: bool | None = None
    tied: bool | None = None
    fused_cross_entropy: bool | None = None
    fused_attention: bool | None = None
    gradient_fusion: bool | None = None
    hidden_dropout: bool | None = None
    gradient_dtype: str | None = None
    moment_dtype: str | None = None
    weight_dtype: str | None = None

    def over(self, below: Mapping[str, Any]) -> dict[str, Any]:
        """Return these settings, and those below where one is not stated here."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**below, **{name: value for name, value in own.items() if value is not None}}


SETTINGS = tuple(field.name for field in fields(PlanSettings))
"""Their names."""
