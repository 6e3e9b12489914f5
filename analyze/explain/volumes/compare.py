"""Expected volumes beside those seen, by axis and kind, over the ranks of one pipeline.

Sums over a pipeline do not depend on how many layers each stage has. Sizes are compared as bytes
where the type of the activations is taken for all; elements then show whether only the type differs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis, CollectiveKind

from ...align.communication.rows import ELEMENT_BYTES, plain_name, sent_rows
from ...align.steps.windows import StepWindows
from ...formulas.planning.communication import volumes_of_rank
from ...formulas.planning.job import PlannedJob, Recompute
from ...formulas.planning.states import layers_of_stage, stages_of_rank
from ...tables.arrays import IntArray
from ...tables.numbering import numbered
from ...tables.trace import Trace, places_of
from .job import Unknown, job_of_run
from .reasons import MOST_APART, Pair, ReasonCode, reason

_SUMS = ["axis", "kind", "pp", "step"]


def seen_volumes(
    trace: Trace, windows: StepWindows, layout: ParallelLayout, events: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return what a rank of each pipeline position sends in each analysed step.

    Groups of one rank move nothing and are left out. Replicas lie along dp and cp together.

    Args:
        trace: The capture.
        windows: The analysed steps.
        layout: Its mesh.
        events: The communication of these steps, where it is known: its records are not read again.

    Returns:
        axis, kind (``send`` for messages), pp, step, count, bytes: means over the captured ranks
        of the position; a step in which nothing was sent has zeros.
    """
    places = places_of(trace, list(trace.ranks))
    ranks_at = places.groupby("pp").size()
    place = np.zeros(int(places["rank"].max()) + 1, np.int64)
    place[places["rank"].to_numpy()] = places["pp"].to_numpy()
    parts = [
        _sums(rows, place)
        for rows in (
            _of_groups(trace, _sent(trace, windows, "collective", events), layout),
            _sent(trace, windows, "p2p", events),
        )
    ]
    sums = pd.concat(parts).groupby(level=_SUMS).sum()
    keys = sums.reset_index()[_SUMS[:-1]].drop_duplicates()
    each = keys.merge(pd.DataFrame({"step": windows.steps}), how="cross")
    sums = sums.reindex(pd.MultiIndex.from_frame(each), fill_value=0)
    table = sums.reset_index().rename(columns={"size": "count", "sum": "bytes"})
    ranks = table["pp"].map(ranks_at).astype(float)
    return table.assign(count=table["count"] / ranks, bytes=table["bytes"] / ranks)


def _sums(rows: pd.DataFrame, place: IntArray) -> pd.DataFrame:
    """Return how many rows there are of each axis, kind, pipeline position and step, and their bytes."""
    keys = {name: rows[name].cat for name in ("axis", "kind")}
    of = [own.codes.to_numpy().astype(np.int64) for own in keys.values()]
    of += [place[rows["rank"].to_numpy()], rows["step"].to_numpy().astype(np.int64)]
    number = numbered(*of)
    count = np.bincount(number)
    first = np.zeros(len(count), np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    size = np.bincount(number, rows["size_bytes"].to_numpy(), len(count)).astype(np.int64)
    names = [
        np.asarray(own.categories, object)[code[first]]
        for own, code in zip(keys.values(), of, strict=False)
    ]
    index = pd.MultiIndex.from_arrays([*names, *(code[first] for code in of[2:])], names=_SUMS)
    return pd.DataFrame({"size": count, "sum": size}, index)


def _sent(
    trace: Trace, windows: StepWindows, name: str, events: pd.DataFrame | None
) -> pd.DataFrame:
    """Return rank, step, group_id, axis, kind and size_bytes of collectives, or of messages by their sender."""
    if events is None:
        rows = sent_rows(trace, windows, name)
        return rows[rows["is_send"].to_numpy(bool)] if name == "p2p" else rows
    is_own = events["is_send"] if name == "p2p" else ~(events["is_p2p"] | events["is_inferred"])
    row = np.flatnonzero(is_own.to_numpy(bool))
    names = ("rank", "step", "group_id", "axis", "kind", "size_bytes")
    return pd.DataFrame({key: events[key].array[row] for key in names}, copy=False)


def _of_groups(trace: Trace, rows: pd.DataFrame, layout: ParallelLayout) -> pd.DataFrame:
    """Return collectives of several ranks, those among replicas along dp whatever axis is stated."""
    group = trace.frame("group")
    axes = {
        str(key): _replica_axis(layout, tuple(ranks))
        for key, ranks in zip(group["group_id"], group["ranks"], strict=True)
    }
    groups = rows["group_id"].cat
    of_group = [axes.get(str(name), "") for name in groups.categories]
    own, of_row = np.array([*of_group, ""], dtype=object), groups.codes.to_numpy()
    axis, kind = rows["axis"], rows["kind"]
    # Context-parallel ranks hold the same weights: they sum gradients, attention sums nothing.
    is_sum = (axis == Axis.CP.value) & (kind == CollectiveKind.ALL_REDUCE.value)
    is_replica = (own == Axis.DP.value)[of_row] & ((axis == Axis.OTHER.value) | is_sum)
    if is_replica.any():
        names = sorted({*axis.cat.categories, Axis.DP.value})
        axis = axis.cat.set_categories(names).mask(is_replica, Axis.DP.value)
    rows, is_shared = rows.assign(axis=axis), (own != _ALONE)[of_row]
    return rows if is_shared.all() else rows[is_shared]


_ALONE = "alone"


def _replica_axis(layout: ParallelLayout, ranks: tuple[int, ...]) -> str:
    """Return ``dp`` for ranks that hold the same weights, ``alone`` for one rank, else nothing."""
    if len(ranks) < 2:
        return _ALONE
    if min(ranks) < 0 or max(ranks) >= layout.world_size:
        return ""
    for axis in (Axis.PP, Axis.TP):
        stride, size = layout.stride(axis), int(getattr(layout, axis))
        if len({rank // stride % size for rank in ranks}) > 1:
            return ""
    return Axis.DP.value


def element_sizes(trace: Trace) -> dict[tuple[str, str], int]:
    """Return the bytes of an element by axis and kind: of the type that most bytes have."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for name, kind_column in (("collective", "kind"), ("p2p", "direction")):
        table = trace.tables.get(name, TABLES[name].empty())
        keys = ["axis", kind_column, "dtype"]
        plain = table.select([*keys, "size_bytes"])
        for key in keys:
            at = plain.schema.get_field_index(key)
            plain = plain.set_column(at, key, plain[key].cast("string"))
        sums = plain.group_by(keys).aggregate([("size_bytes", "sum")]).to_pydict()
        for axis, kind, dtype, total in zip(
            *(sums[key] for key in keys), sums["size_bytes_sum"], strict=True
        ):
            size = ELEMENT_BYTES.get(plain_name(dtype))
            if size is not None and total > found.get((axis, kind), (0, 0))[0]:
                found[axis, kind] = (total, size)
    return {key: size for key, (_, size) in found.items()}


def analysed(windows: StepWindows) -> IntArray:
    """Return the analysed steps; none without step marks."""
    return windows.steps if windows.has_marks else np.zeros(0, np.int64)


Key = tuple[str, str]
_ACTIVATIONS = (Axis.TP, Axis.CP, Axis.EP, Axis.PP)
_PASSED = 2
"""Bytes of an activation where no type is recorded."""


class VolumeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of operation on one axis: a step of one pipeline, a rank of each position."""

    axis: str
    kind: str
    expected_count: float
    expected_bytes: float
    seen_count: float
    """Median over steps."""
    seen_bytes: float
    element_bytes: int | None
    """Of the recorded type; None where no type is recorded."""
    difference_frac: float | None
    """Seen less expected over expected bytes; None where nothing was expected."""
    code: ReasonCode | None
    """Why they differ by more than 2 %; None where they do not."""
    amount: float | None
    """Number in the reason: operations per layer and microbatch, or times as many bytes."""
    steps_apart: tuple[int, ...]
    """Steps whose bytes differ by more than 2 % from the median."""


class ExpectedSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison, or why there is none."""

    rows: tuple[VolumeRow, ...] = ()
    unknown: Unknown | None = None
    job: PlannedJob | None = None
    element_bytes: int = _PASSED
    """Of an activation, and so expected of a gradient."""
    has_type: bool = False
    """Whether that is recorded; else it is assumed."""


def expected_and_seen(
    trace: Trace, windows: StepWindows, events: pd.DataFrame | None = None
) -> ExpectedSeen:
    """Compare the volumes of a step with the formulas of ``meshscope plan``.

    Args:
        trace: The capture.
        windows: The analysed steps.
        events: Their communication, where it is known.
    """
    if trace.layout is None:
        return ExpectedSeen(unknown=Unknown.LAYOUT)
    if not len(analysed(windows)) or not trace.row_count("collective") + trace.row_count("p2p"):
        return ExpectedSeen(unknown=Unknown.RECORDS)
    steps = seen_volumes(trace, windows, trace.layout, events)
    seen = _over_pipeline(steps)
    known = job_of_run(trace, {key: row.bytes for key, row in seen.items()})
    if known.job is None:
        return ExpectedSeen(unknown=known.unknown)
    sizes = element_sizes(trace)
    each = _activation_bytes(sizes, seen)
    places = sorted(set(places_of(trace, list(trace.ranks))["pp"].tolist()))
    job = _fitted(known.job, seen, places, each or _PASSED)
    expected = _expected(job, places, each or _PASSED)
    rows = tuple(_rows(job, places, expected, seen, _apart(steps), sizes, each))
    return ExpectedSeen(
        rows=rows, job=job, element_bytes=each or _PASSED, has_type=each is not None
    )


class _Sum(msgspec.Struct, frozen=True):
    count: float
    bytes: float


def _over_pipeline(steps: pd.DataFrame) -> dict[Key, _Sum]:
    """Return count and bytes by axis and kind: medians over steps, summed over the pipeline."""
    if steps.empty:
        return {}
    middle = steps.groupby(["axis", "kind", "pp"])[["count", "bytes"]].median()
    sums = middle.groupby(level=["axis", "kind"]).sum()
    return {
        (str(axis), str(kind)): _Sum(float(count), float(size))
        for (axis, kind), (count, size) in zip(sums.index, sums.to_numpy(), strict=True)
    }


def _apart(steps: pd.DataFrame) -> dict[Key, tuple[int, ...]]:
    """Return the steps in which much more or less is sent than in the median one."""
    if steps.empty:
        return {}
    by_step = steps.groupby(["axis", "kind", "step"])["bytes"].sum()
    middle = by_step.groupby(level=["axis", "kind"]).transform("median")
    away = by_step[(by_step - middle).abs() > MOST_APART * middle]
    found: dict[Key, list[int]] = {}
    for axis, kind, step in away.index:
        found.setdefault((str(axis), str(kind)), []).append(int(step))
    return {key: tuple(numbers) for key, numbers in found.items()}


def _activation_bytes(sizes: Mapping[Key, int], seen: Mapping[Key, _Sum]) -> int | None:
    """Return the bytes of an activation: of the type with most bytes between layers and stages.

    Without such traffic, of the weights that replicas gather, else of the gradients.
    """
    for axes, kinds in (
        (_ACTIVATIONS, None),
        ((Axis.DP,), ("all_gather",)),
        ((Axis.DP,), None),
    ):
        among = {
            key: size
            for key, size in sizes.items()
            if key[0] in {axis.value for axis in axes} and (kinds is None or key[1] in kinds)
        }
        total: dict[int, float] = {}
        for key, size in among.items():
            total[size] = total.get(size, 0.0) + (seen[key].bytes if key in seen else 0.0)
        if total and max(total.values()) > 0:
            return max(total, key=lambda size: total[size])
    return None


def _expected(job: PlannedJob, places: list[int], each: int) -> dict[Key, _Sum]:
    found: dict[Key, _Sum] = {}
    for place in places:
        for one in volumes_of_rank(job, place):
            key = (one.axis.value, one.kind)
            size = one.bytes_per_step / one.element_bytes * each
            old = found.get(key, _Sum(0.0, 0.0))
            if one.count_per_step:
                found[key] = _Sum(old.count + one.count_per_step, old.bytes + size)
    return found


def _fitted(job: PlannedJob, seen: Mapping[Key, _Sum], places: list[int], each: int) -> PlannedJob:
    """Return the job with the stage of ZeRO that fits best, and recomputation if it fits exactly."""
    if job.zero:
        stages = [replace(job, zero=zero) for zero in (1, 2, 3)]
        job = min(stages, key=lambda one: _distance(one, seen, places, each, (Axis.DP.value,)))
    again = replace(job, recompute=Recompute.FULL)
    axes = (Axis.TP.value, Axis.EP.value)
    fits = _distance(again, seen, places, each, axes) <= math.log1p(MOST_APART)
    return again if fits and _distance(job, seen, places, each, axes) > 2 * MOST_APART else job


def _distance(
    job: PlannedJob, seen: Mapping[Key, _Sum], places: list[int], each: int, axes: tuple[str, ...]
) -> float:
    """Return how far volumes on some axes are from those seen: the sum of logarithms of ratios."""
    found = _expected(job, places, each)
    keys = [key for key in found if key[0] in axes and key in seen and seen[key].bytes]
    return sum(abs(math.log(seen[key].bytes / found[key].bytes)) for key in keys)


def _rows(  # noqa: PLR0913 - what is compared
    job: PlannedJob,
    places: list[int],
    expected: Mapping[Key, _Sum],
    seen: Mapping[Key, _Sum],
    apart: Mapping[Key, tuple[int, ...]],
    sizes: Mapping[Key, int],
    each: int | None,
) -> Iterator[VolumeRow]:
    stages = [stage for place in places for stage in stages_of_rank(job, place)]
    layers = sum(len(layers_of_stage(job, stage)) for stage in stages)
    total = sum(one.bytes for one in expected.values())
    of_axis: dict[str, float] = {}
    for (axis, _), one in expected.items():
        of_axis[axis] = of_axis.get(axis, 0.0) + one.bytes
    for key in sorted({*expected, *seen}):
        want, have = expected.get(key, _Sum(0.0, 0.0)), seen.get(key, _Sum(0.0, 0.0))
        pair = Pair(
            axis=key[0],
            kind=key[1],
            expected_count=want.count,
            expected_bytes=want.bytes,
            seen_count=have.count,
            seen_bytes=have.bytes,
            layers=layers,
            positions=len(places),
            axis_bytes=of_axis.get(key[0], total),
            element_ratio=sizes[key] / each if each and key in sizes else 1.0,
        )
        why, amount = reason(pair, job)
        yield VolumeRow(
            axis=key[0],
            kind=key[1],
            expected_count=want.count,
            expected_bytes=want.bytes,
            seen_count=have.count,
            seen_bytes=have.bytes,
            element_bytes=sizes.get(key),
            difference_frac=have.bytes / want.bytes - 1 if want.bytes else None,
            code=why,
            amount=amount,
            steps_apart=apart.get(key, ()),
        )
