"""Why recorded volumes differ from the formulas, in words; rules and reports share them."""

from __future__ import annotations

from .job import Unknown
from .reasons import ReasonCode

_KINDS = {"all_reduce": "all-reduces", "all_gather": "all-gathers", "send": "sends"}
_TYPES = {1: "8-bit types", 2: "bf16 or fp16", 4: "fp32", 8: "64-bit types"}
_LIKELY = {
    ReasonCode.NOT_SEEN: "the probe did not see it, or the job does not do it",
    ReasonCode.BROADCASTS: "module buffers or settings are broadcast in every step",
    ReasonCode.NOT_EXPECTED: "the formulas have no such operation on this axis",
    ReasonCode.EARLY_STOP: "recomputation skips the last sum of each layer",
    ReasonCode.RING_RETURN: "gradients of keys and values make one more hop",
    ReasonCode.OTHER_FORM: "another form of context parallelism than the ring; no formula",
    ReasonCode.UNEXPLAINED: "no known reason fits",
}
UNKNOWN = {
    Unknown.LAYOUT: "the layout is unknown. State it in a topology file",
    Unknown.MODEL: "the model's shape is unknown. State [model] in a topology file",
    Unknown.BATCH: "microbatches or tokens per step are unknown. State [training] in a topology file",
    Unknown.SETTINGS: "model, layout and schedule do not fit each other",
    Unknown.RECORDS: "no step was recorded with its single operations",
}
"""Why nothing is expected of a run, after a colon."""
REMEDIES = {
    ReasonCode.BROADCASTS: "Pass broadcast_buffers=False to DDP, or broadcast at the start only",
    ReasonCode.DTYPE: "Check the type of gradients and of reductions (DDP hook, reduce_dtype)",
    ReasonCode.EVERY_MICROBATCH: "Reduce once per step: no_sync() around all microbatches but the last",
    ReasonCode.MORE_PER_LAYER: "Check each layer for a sum that is done twice, and what is recomputed",
    ReasonCode.SMALL_BUCKETS: "Raise the bucket size (bucket_cap_mb), or wrap larger modules",
}
"""What to do about a reason that is a fault."""


def kind_label(kind: str) -> str:
    """Return an operation in the plural: ``all-reduces``."""
    return _KINDS.get(
        kind, kind.replace("_", "-").replace("all-to-all", "all-to-all exchange") + "s"
    )


def reason_text(
    code: ReasonCode, kind: str, amount: float | None, element_bytes: int | None
) -> str:
    """Return the likely reason of a difference, as a clause."""
    number = 0.0 if amount is None else amount
    if code is ReasonCode.DTYPE:
        return f"as many elements, sent in {_TYPES.get(element_bytes or 0, 'another type')}"
    if code is ReasonCode.EVERY_MICROBATCH:
        return f"reduced in each of {number:.0f} microbatches instead of once"
    if code is ReasonCode.MORE_PER_LAYER:
        return f"{number:.0f} more {kind_label(kind)} per layer and microbatch"
    if code is ReasonCode.FEWER_PER_LAYER:
        return f"{number:.0f} fewer {kind_label(kind)} per layer and microbatch"
    if code is ReasonCode.SMALL_BUCKETS:
        return f"{number:,.0f} operations per pass: a bucket for each weight tensor"
    return _LIKELY[code]
