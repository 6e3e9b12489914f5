"""Why recorded volumes differ from the formulas: the one reason whose algebra fits."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from meshscope.probe.schema.terms import Axis

from ...formulas.planning.job import PlannedJob, Recompute
from ...wording.message import Message, message
from .job import Unknown

MOST_APART = 0.02
"""Share of the expected bytes by which those seen may differ."""
_MATRICES = 4
"""A layer has at least so many weight tensors: in and out of attention, in and out of the MLP."""
_ENDS = 1
"""Operations per microbatch by which embedding and head together may differ from the formulas."""


class ReasonCode(StrEnum):
    """Why volumes differ."""

    NOT_SEEN = "not_seen"
    """Nothing of the kind was recorded on the axis."""
    BROADCASTS = "broadcasts"
    """Something is broadcast in every step."""
    NOT_EXPECTED = "not_expected"
    """The formulas have no such operation on the axis."""
    DTYPE = "dtype"
    """As many elements, of another type than the activations."""
    EVERY_MICROBATCH = "every_microbatch"
    """Gradients or weights move in every microbatch where once would do."""
    MORE_PER_LAYER = "more_per_layer"
    FEWER_PER_LAYER = "fewer_per_layer"
    EARLY_STOP = "early_stop"
    """Recomputation leaves out the last sum of a layer, which no gradient needs."""
    RING_RETURN = "ring_return"
    """Gradients of keys and values make one hop more than they have to."""
    SMALL_BUCKETS = "small_buckets"
    """As many bytes, in as many operations as there are weight tensors."""
    OTHER_FORM = "other_form"
    """The formulas know another form of the exchange than the one seen."""
    UNEXPLAINED = "unexplained"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """Expected and seen of one kind on one axis, a step of one pipeline."""

    axis: str
    kind: str
    expected_count: float
    expected_bytes: float
    seen_count: float
    seen_bytes: float
    axis_bytes: float
    """Expected of all kinds on the axis, of all axes where this has none."""
    layers: int
    """On the ranks that are compared."""
    positions: int
    """Pipeline ranks that are compared."""
    element_ratio: float
    """Bytes of an element seen over those of an activation."""


def reason(pair: Pair, job: PlannedJob) -> tuple[ReasonCode | None, float | None]:
    """Return why a pair differs, with the number in it; (None, None) where it does not."""
    if not pair.expected_bytes:
        return _not_expected(pair), None
    if pair.axis == Axis.CP.value and not pair.seen_bytes:
        # Keys and values are gathered, or tokens exchanged for heads.
        return ReasonCode.OTHER_FORM, None
    if not pair.seen_bytes:
        return ReasonCode.NOT_SEEN, None
    ratio = pair.seen_bytes / pair.expected_bytes
    if abs(ratio - 1) <= MOST_APART:
        per_pass = pair.seen_count / pair.expected_count * pair.positions
        is_small = pair.axis == Axis.DP.value and per_pass >= _MATRICES * pair.layers
        return (ReasonCode.SMALL_BUCKETS, per_pass) if is_small else (None, None)
    elements = ratio / pair.element_ratio
    if abs(elements - 1) <= MOST_APART:
        return ReasonCode.DTYPE, pair.element_ratio
    if pair.axis == Axis.DP.value:
        is_each = job.microbatches > 1 and abs(elements / job.microbatches - 1) <= MOST_APART
        return (ReasonCode.EVERY_MICROBATCH, elements) if is_each else _unexplained(elements)
    if pair.axis in (Axis.TP.value, Axis.EP.value):
        each = (elements - 1) * pair.expected_count / job.microbatches
        whole = round(each / pair.layers)
        spread = _ENDS + MOST_APART * pair.expected_count / job.microbatches
        if whole and abs(each - whole * pair.layers) <= spread:
            return _per_layer(whole, job), float(abs(whole))
    hops = 3 * (job.layout.cp - 1)
    if pair.axis == Axis.CP.value and abs(elements * hops / (hops + 1) - 1) <= MOST_APART:
        return ReasonCode.RING_RETURN, 1.0
    return _unexplained(elements)


def _per_layer(whole: int, job: PlannedJob) -> ReasonCode:
    if whole == -1 and job.recompute is Recompute.FULL:
        return ReasonCode.EARLY_STOP
    return ReasonCode.MORE_PER_LAYER if whole > 0 else ReasonCode.FEWER_PER_LAYER


def _unexplained(elements: float) -> tuple[ReasonCode, float]:
    return ReasonCode.UNEXPLAINED, elements


def _not_expected(pair: Pair) -> ReasonCode | None:
    if pair.seen_bytes <= MOST_APART * pair.axis_bytes:
        return None
    if pair.axis == Axis.CP.value:
        return ReasonCode.OTHER_FORM
    return ReasonCode.BROADCASTS if pair.kind == "broadcast" else ReasonCode.NOT_EXPECTED


_LIKELY = {
    ReasonCode.NOT_SEEN: message("volume.not_seen"),
    ReasonCode.BROADCASTS: message("volume.broadcasts"),
    ReasonCode.NOT_EXPECTED: message("volume.not_expected"),
    ReasonCode.EARLY_STOP: message("volume.early_stop"),
    ReasonCode.RING_RETURN: message("volume.ring_return"),
    ReasonCode.OTHER_FORM: message("volume.other_form"),
    ReasonCode.UNEXPLAINED: message("volume.unexplained"),
}
_TYPES = {
    1: message("volume.bits8"),
    2: message("volume.bits16"),
    4: message("volume.bits32"),
    8: message("volume.bits64"),
}
UNKNOWN = {
    Unknown.LAYOUT: message("volume.unknown_layout"),
    Unknown.MODEL: message("volume.unknown_model"),
    Unknown.BATCH: message("volume.unknown_batch"),
    Unknown.SETTINGS: message("volume.unfit_settings"),
    Unknown.RECORDS: message("volume.no_records"),
}
"""Why nothing is expected of a run, after a colon."""
REMEDIES = {
    ReasonCode.BROADCASTS: message("communication_volume.remedy_broadcasts"),
    ReasonCode.DTYPE: message("communication_volume.remedy_type"),
    ReasonCode.EVERY_MICROBATCH: message("communication_volume.remedy_microbatches"),
    ReasonCode.MORE_PER_LAYER: message("communication_volume.remedy_layers"),
    ReasonCode.SMALL_BUCKETS: message("communication_volume.remedy_buckets"),
}
"""What to do about a reason that is a fault."""


def reason_message(
    code: ReasonCode, kind: str, amount: float | None, element_bytes: int | None
) -> Message:
    """Return the likely reason of a difference, as a clause."""
    number = round(amount or 0.0)
    if code is ReasonCode.DTYPE:
        type_of = _TYPES.get(element_bytes or 0, message("volume.other_type"))
        return message("volume.type", type=type_of)
    if code is ReasonCode.EVERY_MICROBATCH:
        return message("volume.every_microbatch", microbatches=number)
    if code is ReasonCode.MORE_PER_LAYER:
        return message("volume.more_per_layer", count=number, kind=kind)
    if code is ReasonCode.FEWER_PER_LAYER:
        return message("volume.fewer_per_layer", count=number, kind=kind)
    if code is ReasonCode.SMALL_BUCKETS:
        return message("volume.small_buckets", count=number)
    return _LIKELY[code]
