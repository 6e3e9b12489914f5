"""Other transfers on the recorded program: narrower types, other buckets, two levels."""

from __future__ import annotations

import re
from enum import StrEnum

import numpy as np

from meshscope.probe.schema.errors import ConfigError

from ...tables.arrays import FloatArray
from ...wording.message import Message, message
from ..replay.program import Program
from .buckets import bucket_shares, gradient_chains
from .changes import Change
from .hierarchy import NO_HOSTS, NO_RATE, NO_SUMS, ONE_HOST, UNEVEN, hierarchy_shares
from .transfer_model import TransferModel


class TransferChange(StrEnum):
    """What about the transfers is changed."""

    DTYPE = "dtype"
    BUCKET = "bucket"
    HIERARCHY = "hierarchy"


TYPE_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(B|kB|MB|GB|KiB|MiB|GiB)")
_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
ONE_BUCKET = "one"
WHY_UNKNOWN = {
    NO_SUMS: message("two_levels.no_sums"),
    NO_HOSTS: message("two_levels.no_hosts"),
    ONE_HOST: message("two_levels.one_host"),
    UNEVEN: message("two_levels.uneven"),
    NO_RATE: message("two_levels.no_rate"),
}
"""Why two levels have no price, after a colon."""
TRANSFER_NOTES = {
    TransferChange.DTYPE.value: message("whatif.narrower_types"),
    TransferChange.BUCKET.value: message("whatif.even_gradients"),
    TransferChange.HIERARCHY.value: message("whatif.two_levels"),
}
"""What each kind of change assumes."""


def bucket_bytes(text: str) -> float | None:
    """Return the bytes of a size such as ``25MB``; None for ``one``.

    Raises:
        ConfigError: It is neither.
    """
    if text == ONE_BUCKET:
        return None
    match = _SIZE.fullmatch(text)
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            message("refused.bucket", text=text),
            where="--set bucket",
            remedy=message("advice.bucket", one=ONE_BUCKET),
        )
    return float(match[1]) * _UNITS[match[2]]


def changed_shares(model: TransferModel, change: Change) -> FloatArray:
    """Return the share of each event's wire time that a change takes away, ``(events,)``.

    Raises:
        ConfigError: The value is not valid, or the run lacks what the change needs.
    """
    kind, axis = change.name.split(".")
    if kind == TransferChange.DTYPE:
        return _typed(model, axis, change)
    if kind == TransferChange.BUCKET:
        size = bucket_bytes(change.value)
        if gradient_chains(model, axis).empty:
            raise _lacks(change, message("refused.no_sums"), message("advice.record_collectives"))
        return bucket_shares(model, axis, size)
    if change.value != "on":
        raise _lacks(
            change, message("refused.hierarchy", text=change.value), message("advice.hierarchy")
        )
    shares, why = hierarchy_shares(model, axis)
    if why is not None:
        raise _lacks(change, WHY_UNKNOWN[why], message("advice.topology"))
    return shares


def _typed(model: TransferModel, axis: str, change: Change) -> FloatArray:
    if change.value not in TYPE_BYTES:
        raise _lacks(
            change,
            message("refused.type", text=change.value),
            message("advice.one_of", known=list(TYPE_BYTES)),
        )
    ratio = type_ratios(model, axis, TYPE_BYTES[change.value])
    if not (ratio < 1).any():
        raise _lacks(
            change,
            message("refused.no_wider_type"),
            message("advice.record_types"),
        )
    return type_shares(model, ratio)


def type_ratios(model: TransferModel, axis: str, wanted: int) -> FloatArray:
    """Return bytes then over bytes now of each event, 1 where its type is no wider one."""
    size = model.frame["float_bytes"].to_numpy(np.float64)
    is_wider = model.of_axis(axis) & (size > wanted)
    return np.where(is_wider, wanted / np.maximum(size, 1), 1.0)


def type_shares(model: TransferModel, ratio: FloatArray) -> FloatArray:
    """Return the share that fewer bytes take away: of the part of the time that depends on the size."""
    with np.errstate(divide="ignore", invalid="ignore"):
        part = 1.0 - model.fixed_ns / model.wire_ns
    return np.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0) * (1.0 - ratio)


def _lacks(change: Change, what: Message, remedy: Message) -> ConfigError:
    return ConfigError(what, where=f"--set {change.name}={change.value}", remedy=remedy)


def transfer_effect(
    model: TransferModel, program: Program, base_ns: FloatArray, change: Change
) -> FloatArray:
    """Return what a change of the transfers takes from every edge, ns.

    Args:
        model: The transfers.
        program: The replay graph.
        base_ns: What other changes have left of every edge.
        change: The change.
    """
    taken = np.zeros(program.edge_count)
    # A member that leaves before all have come has a wire below 0, which no change makes shorter.
    wire = np.maximum(base_ns[program.first_wire :], 0.0)
    taken[program.first_wire :] = wire * changed_shares(model, change)[program.wire_event]
    return taken
