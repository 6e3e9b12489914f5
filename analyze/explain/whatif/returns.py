"""What narrower types, other buckets and sums in two levels would return, by replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Axis

from ...tables.arrays import FloatArray
from ..replay.effect_folding import edge_effect
from ..replay.program import Program
from ..replay.scenarios import times_and_lengths
from ..run_account import Account
from .buckets import bucket_shares, chain_ends, gradient_chains
from .predict import half_width
from .transfer_model import TransferModel, transfer_model
from .transfers import (
    NO_SUMS,
    ONE_BUCKET,
    ONE_HOST,
    TYPE_BYTES,
    UNEVEN,
    TransferChange,
    hierarchy_shares,
    type_ratios,
    type_shares,
)

_LEAST_BYTES = 0.01
"""Share of the bytes of an axis that a narrower type must concern."""
LEAST_WIRE = 0.001
"""Share of the step that an axis must be on the wire."""
_LISTED_TYPES = ("bf16", "int8")
_BUCKET_STEPS = (0.25, 0.5, 2.0, 4.0)
"""Sizes of buckets that are tried, beside one bucket; times the median recorded one."""


class Gain(NamedTuple):
    """Of a change, per step, by replay; ns."""

    gain_ns: float
    low_ns: float
    high_ns: float
    """Range by the fixed time of transfers and by chance over the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReturn:
    """One change of one axis."""

    axis: str
    change: TransferChange
    value: str
    """As ``whatif --set CHANGE.AXIS=VALUE`` takes it."""
    bytes_now: float | None
    """That change, per step: mean over ranks."""
    bytes_then: float | None
    operations_now: float | None = None
    """Of a chain of gradients."""
    operations_then: float | None = None
    gain: Gain | None = None
    """None where unknown."""
    unknown: str | None = None
    """Code of what is missing."""


def transfer_returns(account: Account) -> tuple[TransferReturn, ...]:
    """Return what changes of the transfers would return; nothing where the run cannot be replayed."""
    program = account.program
    if program is None or account.unseen or not len(program.events):
        return ()
    model = transfer_model(account, program)
    axis = model.frame["axis"].astype(str)
    step_ns = account.windows.step_time_ns
    ranks = max(len(account.windows.ranks) * len(account.windows.steps), 1)
    on_wire = pd.Series(np.nan_to_num(model.wire_ns)).groupby(axis.to_numpy()).sum() / ranks
    found: list[TransferReturn] = []
    for name in on_wire.index[on_wire >= LEAST_WIRE * step_ns]:
        if str(name) == Axis.OTHER.value:
            continue
        found += _types(account, program, model, str(name))
        found += _buckets(account, program, model, str(name))
        found += _two_levels(account, program, model, str(name))
    return tuple(found)


def _types(
    account: Account, program: Program, model: TransferModel, axis: str
) -> Iterator[TransferReturn]:
    size = model.frame["size_bytes"].to_numpy(np.float64)
    per = len(account.windows.ranks) * len(account.windows.steps)
    for value in _LISTED_TYPES:
        ratio = type_ratios(model, axis, TYPE_BYTES[value])
        changed = ratio < 1
        if not size[changed].sum() > _LEAST_BYTES * size[model.of_axis(axis)].sum():
            continue
        yield TransferReturn(
            axis=axis,
            change=TransferChange.DTYPE,
            value=value,
            bytes_now=float(size[changed].sum() / per),
            bytes_then=float((size * ratio)[changed].sum() / per),
            gain=_gain(
                account,
                program,
                *(
                    type_shares(model.with_fixed(fixed), ratio)
                    for fixed in (model.high_ns, model.fixed_ns, model.low_ns)
                ),
            ),
        )


def _buckets(
    account: Account, program: Program, model: TransferModel, axis: str
) -> Iterator[TransferReturn]:
    """Yield the best size of those tried, by the formula of the chains."""
    chains = gradient_chains(model, axis)
    if axis != Axis.DP.value or chains.empty:
        return
    usual = float(chains["size_bytes"].median())
    tried = [(_size_text(step * usual), step * usual) for step in _BUCKET_STEPS]
    options: list[tuple[str, float | None]] = [*tried, (ONE_BUCKET, None)]
    gains = []
    recorded = len(chains) / (int(chains["chain"].max()) + 1)
    for _, size in options:
        now, then, buckets = chain_ends(chains, size)
        gain = float((now - then).sum())
        gains.append((-np.inf if buckets.mean() == recorded else gain, float(buckets.mean())))
    at = int(np.argmax([gain for gain, _ in gains]))
    if np.isneginf(gains[at][0]):
        return
    text, size = options[at]
    yield TransferReturn(
        axis=axis,
        change=TransferChange.BUCKET,
        value=text,
        bytes_now=usual,
        bytes_then=size,
        operations_now=recorded,
        operations_then=gains[at][1],
        gain=_gain(
            account,
            program,
            *(
                bucket_shares(model.with_fixed(fixed), axis, size, chains)
                for fixed in (model.low_ns, model.fixed_ns, model.high_ns)
            ),
        ),
    )


def _two_levels(
    account: Account, program: Program, model: TransferModel, axis: str
) -> Iterator[TransferReturn]:
    shares, why = hierarchy_shares(model, axis)
    if why in (NO_SUMS, ONE_HOST, UNEVEN):
        return
    gain = None
    if why is None:
        low, high = (
            hierarchy_shares(model.with_fixed(fixed), axis)[0]
            for fixed in (model.low_ns, model.high_ns)
        )
        gain = _gain(account, program, low, shares, high)
    yield TransferReturn(
        axis=axis,
        change=TransferChange.HIERARCHY,
        value="on",
        bytes_now=None,
        bytes_then=None,
        gain=gain,
        unknown=why,
    )


def _gain(
    account: Account, program: Program, low: FloatArray, usual: FloatArray, high: FloatArray
) -> Gain:
    """Return the gain of three shares of each event's wire time."""
    measured = account.windows.step_time_ns
    # A member that leaves before all have come has a wire below 0, which no change makes shorter.
    base = np.maximum(program.base_ns[program.first_wire :], 0.0)
    effects = [
        edge_effect(base * share[program.wire_event], first=program.first_wire)
        for share in (usual, low, high)
    ]
    # A lane without each of the three, and one that is as recorded.
    keep = np.column_stack([1.0 - np.eye(len(effects)), np.ones(len(effects))])
    times, lengths = times_and_lengths(program, effects, keep)
    gains = (measured * (1.0 - times[:-1] / times[-1])).tolist()
    width = half_width(lengths[:, -1] - lengths[:, 0])
    spread = 0.0 if np.isnan(width) else width
    return Gain(gains[0], min(gains) - spread, max(gains) + spread)


def _size_text(size: float) -> str:
    for unit, amount in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= amount:
            return f"{size / amount:.4g}{unit}"
    return f"{size:.0f}B"
