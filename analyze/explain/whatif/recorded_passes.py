"""What every pass of the recorded run took, without the waiting that the pipeline imposed.

A step of a rank is cut into a *head* before its first pass, its passes, and a *tail*
after the last. What a rank does between two passes belongs to the later one: it comes
as often as passes do. Messages between stages belong to no pass.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis

from ...account.ledger.build import NO_EVENT, when_computed
from ...align.steps.time_lookup import overlaps
from ...formulas.schedules import PASS_KINDS
from ...tables.arrays import FloatArray
from ...tables.classes import WAIT_CLASSES, WIRE_CLASSES, class_code
from ...wording.message import message
from ..run_account import Account
from .repaired_times import RepairedTimes

HEAD, TAIL = len(PASS_KINDS), len(PASS_KINDS) + 1
"""Codes of the parts of a step that are no pass."""
FORWARD, INPUT, WEIGHT = range(3)
"""Kinds of the passes that a schedule may order: forward, backward for inputs, for weights."""
_KEYS = ("part", "pp", "chunk", "replica", "step", "microbatch")


class RecordedPasses(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in ns; members of a replica that share a pass (tp, cp) count once."""

    pass_ns: FloatArray
    """``(kind, pp, chunk, replica, step, microbatch)``, kinds as above."""
    is_split: bool
    """Whether the backward passes for inputs and weights were recorded apart."""
    head_ns: FloatArray
    """``(pp, replica, step)``; the same for the tail."""
    tail_ns: FloatArray
    message_ns: FloatArray
    """Wire time of a message to a rank from ranks before and after it, ``(2, pp, replica)``."""


def recorded_passes(
    account: Account, layout: ParallelLayout, times: RepairedTimes | None
) -> RecordedPasses:
    """Return what the passes took.

    Args:
        account: The measured run.
        layout: Its mesh.
        times: Those after repairs; None to take the run as it is.

    Raises:
        ConfigError: The capture does not tell the passes apart.
    """
    parts = _parts(account, layout)
    parts["dur_ns"] = _durations(account, parts, times)
    place = pd.DataFrame(
        [(at["pp"], at["dp"]) for at in map(layout.coordinates, account.windows.ranks.tolist())],
        index=account.windows.ranks,
        columns=["pp", "replica"],
    )
    parts = parts.join(place, on="rank")
    parts["step"] = np.searchsorted(account.windows.steps, parts["step"])
    sizes = (
        len(PASS_KINDS) + 2,
        layout.pp,
        layout.vpp,
        layout.dp,
        len(account.windows.steps),
        int(parts["microbatch"].max()) + 1,
    )
    means = _means(parts, sizes)
    passes, is_split = _by_direction(means[: len(PASS_KINDS)])
    if np.isnan(passes).all(axis=(3, 4, 5)).any():
        raise _not_separable(account)
    head, tail = (_filled(means[part, :, 0, :, :, 0], axes=(1, 2)) for part in (HEAD, TAIL))
    if Axis.PP in account.unseen:
        # The stage that waits least for the first pass, and after the last, shows the rest alone.
        head, tail = (np.broadcast_to(one.min(axis=0), one.shape) for one in (head, tail))
    return RecordedPasses(
        pass_ns=_filled(passes, axes=(3, 4, 5)),
        is_split=is_split,
        head_ns=head,
        tail_ns=tail,
        message_ns=_messages(account, layout, place, times),
    )


def _parts(account: Account, layout: ParallelLayout) -> pd.DataFrame:
    """Return the head, passes and tail of every step: rank, step, part, chunk, microbatch, start, end."""
    spans = account.windows.select(account.trace.frame("span"))
    codes = {kind.value: code for code, kind in enumerate(PASS_KINDS)}
    spans = spans[spans["kind"].astype(str).isin(codes)]
    has_passes = account.ledger.by_step.groupby("rank")[["forward", "backward"]].sum()
    if spans.empty or not (has_passes > 0).all(axis=None):
        raise _not_separable(account)
    begin, dur_ns = when_computed(spans)
    start = account.windows.shifted(spans["step"], begin)
    names = ("rank", "step", "chunk", "microbatch")
    passes = pd.DataFrame({name: spans[name].to_numpy(np.int64) for name in names})
    passes["part"] = spans["kind"].astype(str).map(codes).to_numpy(np.int64)
    passes["start_ns"], passes["end_ns"] = start, start + dur_ns
    passes["chunk"] = passes["chunk"].clip(lower=0)
    passes = passes.sort_values(["rank", "step", "start_ns"], ignore_index=True)
    if (passes["microbatch"] < 0).any():
        same = ["rank", "step", "part", "chunk"]
        passes["microbatch"] = passes.groupby(same).cumcount()
    if passes["chunk"].nunique() != layout.vpp or passes["chunk"].max() >= layout.vpp:
        raise _not_separable(account)
    return _tiled(passes, account.windows.frame, with_gaps=Axis.PP not in account.unseen)


def _tiled(passes: pd.DataFrame, windows: pd.DataFrame, *, with_gaps: bool) -> pd.DataFrame:
    """Return the passes with the gap before each, and the head and the tail of each step.

    Without gaps passes last as long as they were recorded: where no message was, a gap is mostly
    waiting that belongs to no pass.
    """
    of_step = passes.groupby(["rank", "step"], sort=False)
    ends = of_step["end_ns"].cummax()
    before = ends.groupby([passes["rank"], passes["step"]], sort=False).shift()
    first = of_step["start_ns"].min()
    last = of_step["end_ns"].max()
    if with_gaps:
        begin = before.fillna(passes["start_ns"]).astype(np.int64)
        passes = passes.assign(start_ns=begin, end_ns=ends)
    rims = windows.join(first.rename("first"), on=["rank", "step"])
    rims = rims.join(last.rename("last"), on=["rank", "step"]).dropna(subset=["first", "last"])
    outside = {"chunk": 0, "microbatch": 0}
    head = rims.assign(part=HEAD, end_ns=rims["first"].astype(np.int64), **outside)
    tail = rims.assign(part=TAIL, start_ns=rims["last"].astype(np.int64), **outside)
    return pd.concat([passes, head[passes.columns], tail[passes.columns]], ignore_index=True)


def _durations(account: Account, parts: pd.DataFrame, times: RepairedTimes | None) -> FloatArray:
    """Return how long each part takes without messages; outside passes, without any waiting."""
    segments = account.ledger.segments.sort_values(["rank", "start_ns"])
    part, segment, low, high = overlaps(parts, segments)
    code = segments["code"].to_numpy(np.int64)[segment]
    event = segments["event"].to_numpy(np.int64)[segment]
    rank = parts["rank"].to_numpy(np.int64)[part]
    lasts, wire = (high - low).astype(np.float64), (high - low).astype(np.float64)
    if times is not None:
        lasts = times.at(rank, high) - times.at(rank, low)
        of_event = event != NO_EVENT
        wire[of_event] *= times.wire_factor(event[of_event])
    is_pass = parts["part"].to_numpy()[part] < HEAD
    is_wire, is_wait = (
        np.isin(code, list(map(class_code, names))) for names in (WIRE_CLASSES, WAIT_CLASSES)
    )
    is_message = np.isin(
        code, [class_code(f"exposed_{Axis.PP}_{what}") for what in ("wait", "wire")]
    )
    outside = np.where(is_wait, 0.0, np.where(is_wire, wire, lasts))
    counted = np.where(is_message, 0.0, np.where(is_pass, lasts, outside))
    return np.bincount(part, counted, len(parts)).astype(np.float64)


def _means(parts: pd.DataFrame, sizes: tuple[int, ...]) -> FloatArray:
    """Return the mean over the members of a replica in an array; NaN for what was not recorded.

    A member may record a pass in pieces, such as its layers and its loss: they add up.
    """
    cell = np.ravel_multi_index(tuple(parts[name].to_numpy(np.int64) for name in _KEYS), sizes)
    cells = int(np.prod(sizes))
    total = np.bincount(cell, parts["dur_ns"], cells)
    member = pd.DataFrame({"cell": cell, "rank": parts["rank"].to_numpy(np.int64)})
    members = np.bincount(member.drop_duplicates()["cell"], minlength=cells)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / members).reshape(sizes)


def _by_direction(means: FloatArray) -> tuple[FloatArray, bool]:
    """Return forward, backward for inputs and for weights, and whether the last two were apart."""
    forward, backward, inputs, weights = means
    half = backward / 2
    split = np.where(np.isnan(inputs), half, inputs), np.where(np.isnan(weights), half, weights)
    return np.stack([forward, *split]), not np.isnan(inputs).all()


def _filled(values: FloatArray, axes: tuple[int, ...]) -> FloatArray:
    """Return the values with the median of the others in the place of those that are missing."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    known = np.where(missing.all(axis=axes, keepdims=True), 0.0, values)
    return np.where(missing, np.nanmedian(known, axis=axes, keepdims=True), values)


def _messages(
    account: Account, layout: ParallelLayout, place: pd.DataFrame, times: RepairedTimes | None
) -> FloatArray:
    """Return the mean wire time of messages by direction and receiver, 0 where none was recorded."""
    frame = account.events.frame
    row = np.flatnonzero(
        (frame["is_p2p"] & ~frame["is_send"] & frame["wire_ns"].notna()).to_numpy()
    )
    if not len(row):
        return np.zeros((2, layout.pp, layout.dp))
    wire = frame["wire_ns"].to_numpy(np.float64)[row]
    if times is not None:
        wire = wire * times.wire_factor(row)
    own = place.loc[frame["rank"].to_numpy()[row]]
    ends = frame["link"].iloc[row].astype(str).str.split("->", expand=True).astype(np.int64)
    sender = np.where(ends[0] == frame["rank"].to_numpy()[row], ends[1], ends[0])
    stages = np.array([layout.coordinates(int(rank))["pp"] for rank in range(layout.world_size)])
    pp = own["pp"].to_numpy()
    is_later = (stages[sender] > pp).astype(np.int64)
    keys = (is_later, pp, own["replica"].to_numpy())
    found = np.full((2, layout.pp, layout.dp), np.nan)
    means = pd.Series(wire).groupby(list(keys)).mean()
    found[tuple(np.array(means.index.tolist()).T)] = means
    return np.where(np.isnan(found), wire.mean(), found)


def _not_separable(account: Account) -> ConfigError:
    return ConfigError(
        message("refused.passes_not_separate"),
        where=str(account.trace.path),
        remedy=message("advice.capture_stages"),
    )
