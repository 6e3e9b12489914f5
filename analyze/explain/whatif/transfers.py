"""Other transfers on the recorded program: narrower types, other buckets, two levels.

An all-reduce over several hosts can be done in two levels. Flat, a ring over n ranks takes 2 (n - 1) hops and moves 2 (n - 1) / n of the message on each link.
In two levels, with g ranks on each of H hosts::

    reduce-scatter in the host      (g - 1) hops,    (g - 1) / g of the message
    all-reduce between hosts      2 (H - 1) hops,  2 (H - 1) / H of the message in all, g parts at once
    all-gather in the host          (g - 1) hops,    (g - 1) / g of the message

The links between hosts carry about the same bytes: rings that are built host by host leave each once. What it saves is
hops; what it costs is the time inside the host, at the rate that another axis of the run reaches there.
"""

from __future__ import annotations

import re
from collections import Counter
from enum import StrEnum

import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import CollectiveKind

from ...align.communication.bandwidth import KEY, bus_factor, fixed_times, transfer_table
from ...tables.arrays import FloatArray
from ...wording.message import Message, message
from ..replay.program import Program
from .buckets import bucket_shares, gradient_chains
from .changes import Change
from .transfer_model import TransferModel

NO_SUMS = "sums"
NO_HOSTS = "hosts"
ONE_HOST = "one_host"
UNEVEN = "uneven"
NO_RATE = "inside_rate"


def hierarchy_shares(model: TransferModel, axis: str) -> tuple[FloatArray, str | None]:
    """Return the share of each event's wire time that two levels take away, and why it is unknown.

    Returns:
        ``(events,)``, negative where two levels take longer; the code is ``sums`` (no all-reduce
        of known size and time), ``hosts`` (not recorded),
        ``one_host`` (no group crosses, or none has two ranks on a host), ``uneven`` (hosts hold unequal
        numbers) or ``inside_rate`` (no axis inside a host shows its rate); None where it is known.
    """
    shares = np.zeros(len(model.frame))
    is_sum = (model.frame["kind"].astype(str) == CollectiveKind.ALL_REDUCE.value).to_numpy(
        copy=True
    )
    is_sum &= model.of_axis(axis) & (model.frame["size_bytes"] > 0).to_numpy() & (model.wire_ns > 0)
    if not is_sum.any():
        return shares, NO_SUMS
    spread, why = _spread(model, axis)
    if why is not None:
        return shares, why
    rate = _inside(model)
    if rate is None:
        return shares, NO_RATE
    hop_ns, byte_ns = rate
    names = model.frame["group_id"].cat
    shapes = np.array([*(spread.get(str(name), (1, 1)) for name in names.categories), (1, 1)])
    hosts, each = shapes[names.codes.to_numpy()].T.astype(np.float64)
    wanted = is_sum & (hosts > 1)
    ranks = hosts * each
    with np.errstate(divide="ignore", invalid="ignore"):
        between = model.fixed_ns * (hosts - 1) / (ranks - 1)
        between += (model.wire_ns - model.fixed_ns) * ((hosts - 1) / hosts) / ((ranks - 1) / ranks)
        size = model.frame["size_bytes"].to_numpy(np.float64)
        inside = 2 * (each - 1) * hop_ns + 2 * (each - 1) / each * size * byte_ns
        found = 1 - (between + inside) / model.wire_ns
    shares[wanted] = found[wanted]
    return shares, None


def _spread(model: TransferModel, axis: str) -> tuple[dict[str, tuple[int, int]], str | None]:
    """Return hosts and ranks on each, of the groups of an axis that two levels fit."""
    group = model.trace.frame("group")
    own = group[group["axis"].astype(str) == axis]
    found, is_uneven = {}, False
    for name, ranks in zip(own["group_id"], own["ranks"], strict=True):
        held = Counter(model.trace.host_of(rank) for rank in ranks)
        if None in held:
            return {}, NO_HOSTS
        if len(held) < 2 or max(held.values()) < 2:
            continue
        if len(set(held.values())) > 1:
            is_uneven = True
            continue
        found[str(name)] = (len(held), next(iter(held.values())))
    if found:
        return found, None
    return {}, UNEVEN if is_uneven else ONE_HOST


def _is_one(hosts: set[str | None]) -> bool:
    return len(hosts) == 1 and None not in hosts


def _inside(model: TransferModel) -> tuple[float, float] | None:
    """Return the time of a hop and of a byte inside a host, ns: of the axis that is fastest there."""
    group = model.trace.frame("group")
    inside = {
        str(name)
        for name, ranks in zip(group["group_id"], group["ranks"], strict=True)
        if len(ranks) > 1 and _is_one({model.trace.host_of(rank) for rank in ranks})
    }
    kind = model.frame["kind"].astype(str)
    is_sum = kind == CollectiveKind.ALL_REDUCE.value
    own = (model.frame["group_id"].astype(str).isin(inside) & is_sum).to_numpy()
    table = transfer_table(model.frame[own], model.members[own])
    if table.empty:
        return None
    fixed = fixed_times(table)["fixed_ns"]
    factor = [bus_factor("all_reduce", int(count)) or np.nan for count in table["members"]]
    at = pd.MultiIndex.from_frame(table[KEY])
    moved = table["size_bytes"].to_numpy(np.float64) * np.array(factor)
    byte_ns = pd.Series(
        (table["wire_ns"].to_numpy() - fixed.reindex(at).to_numpy()) / moved, index=at
    )
    by_key = byte_ns.groupby(level=KEY).median().clip(lower=0)
    best = int(by_key.argmin())
    count = int(by_key.index.get_level_values("members")[best])
    hop_ns = float(fixed.reindex(by_key.index).iloc[best]) / (2 * (count - 1))
    return hop_ns, float(by_key.iloc[best])


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
