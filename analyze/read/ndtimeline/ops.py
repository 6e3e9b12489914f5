"""The rows of an NDTimeline parquet file that can be true, with times in integer ns."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed

from ...wording.limits import Limit, limit_text
from ...wording.message import message
from .columns import NDTIMELINE_COLUMNS, read_columns

Mask = npt.NDArray[np.bool_]

SEQUENCE_END = 100_000
"""Larger positions in a step are damage: they would be mistaken for those of another step."""
_LONGEST_S = 4.6e9
"""A start and a duration below it add up within 64 bits of nanoseconds."""
_DAY_S = 86_400
_MOST_RANKS = 1 << 20
_RANGES = {
    "rank": (0, _MOST_RANKS), "dp_rank": (0, _MOST_RANKS), "stage": (0, _MOST_RANKS),
    "step": (-1, 1 << 31), "seq_id": (-1, SEQUENCE_END), "mc": (-1, 1 << 20), "mb_id": (-1, 1 << 20),
}  # fmt: skip
"""First value, and the first one behind the last, of what is an integer."""
_NS_PER_S = 1e9
_OPERATION = ["rank", "step", "optype", "seq_id"]
"""What tells an operation from all others; the position of some types may be unknown."""


def read_ops(parquet: Path, known: Collection[str]) -> tuple[pd.DataFrame, list[Limit]]:
    """Return the usable rows by step, rank and start, and what is missing.

    Args:
        parquet: The file; it has the columns of the format.
        known: Operation types that can be used.

    Raises:
        TraceFormatError: The file is damaged or too large, a column is of another kind, no
            row can be used, or a worker has two places in the mesh.
    """
    table = read_columns(parquet)
    numbers = {name: _numbers(table, name, parquet) for name in NDTIMELINE_COLUMNS - {"optype"}}
    types = _types(table, parquet)
    is_possible = _are_possible(numbers)
    is_timed = np.isfinite(numbers["start_ts"]) & np.isfinite(numbers["duration"])
    is_known = np.isin(types, list(known))
    is_possible &= _are_near(numbers, is_timed & is_known & is_possible)
    lost = tuple(
        int(one.sum())
        for one in (~is_timed, is_timed & ~is_known, is_timed & is_known & ~is_possible)
    )
    limits = _lost(lost, len(types), _names(types[~is_known]))
    is_kept = is_timed & is_known & is_possible
    if not is_kept.any():
        raise TraceFormatError(
            message("refused.no_operation"),
            where=str(parquet),
            remedy=" ".join(map(limit_text, limits)),
        )
    ops = _frame({name: values[is_kept] for name, values in numbers.items()}, types[is_kept])
    if ops.groupby("rank")[["dp_rank", "stage"]].nunique().to_numpy().max() > 1:
        raise TraceFormatError(message("refused.several_places"), where=str(parquet))
    return _only_once(ops, limits), limits


def _lost(lost: tuple[int, ...], count: int, unknown: str) -> list[Limit]:
    """Return why operations are left out: no time, an unknown type, values that cannot be."""
    timeless, odd, impossible = lost
    found: list[Limit] = []
    if timeless:
        found.append(message("missing.operations_without_time", lost=timeless, count=count))
    if odd:
        found.append(
            message("missing.operations_of_other_types", lost=odd, count=count, types=unknown)
        )
    if impossible:
        found.append(message("missing.impossible_operations", lost=impossible, count=count))
    return found


def _only_once(ops: pd.DataFrame, limits: list[Limit]) -> pd.DataFrame:
    """Leave out all but the last row of an operation: two would both be matched with one peer."""
    is_again = ops.duplicated(_OPERATION, keep="last") & (ops["seq_id"] >= 0)
    if not is_again.any():
        return ops
    limits.append(message("missing.operations_again", lost=int(is_again.sum()), count=len(ops)))
    return ops[~is_again].reset_index(drop=True)


def _numbers(table: pa.Table, name: str, parquet: Path) -> npt.NDArray[np.float64]:
    """Return a column as floats, NaN where it is null: all integers that can be are exact."""
    try:
        values = table[name].cast(pa.float64(), safe=False)
    except pa.ArrowException as error:
        raise TraceFormatError(
            message("refused.no_numbers", column=name, type=str(table[name].type)),
            where=str(parquet),
        ) from error
    return np.asarray(values.to_numpy(), dtype=np.float64)


def _types(table: pa.Table, parquet: Path) -> npt.NDArray[np.object_]:
    """Return the operation types; those of unknown rows are empty."""
    column = table["optype"]
    try:
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        encoded = column.unify_dictionaries().combine_chunks()
        texts = encoded.dictionary.cast(pa.binary()).fill_null(b"").to_pylist()
    except pa.ArrowException as error:
        raise TraceFormatError(
            message("refused.no_names", column="optype", type=str(column.type)), where=str(parquet)
        ) from error
    words = [text.decode(errors="replace") for text in texts]
    codes = pc.fill_null(encoded.indices, len(words)).to_numpy()
    return np.asarray(np.array([*words, ""], dtype=object)[codes])


def _are_possible(numbers: dict[str, npt.NDArray[np.float64]]) -> Mask:
    """Tell which rows hold integers in their ranges and no negative or absurd times."""
    start, duration = numbers["start_ts"], numbers["duration"]
    possible = (np.abs(start) < _LONGEST_S) & (duration >= 0) & (duration < _LONGEST_S)
    for name, (first, end) in _RANGES.items():
        values = numbers[name]
        possible &= (values >= first) & (values < end) & (np.floor(values) == values)
    return np.asarray(possible)


def _are_near(numbers: dict[str, npt.NDArray[np.float64]], usable: Mask) -> Mask:
    """Tell which rows end within a day of the starts of the usable ones, which may lie any time apart."""
    if not usable.any():
        return usable
    starts = numbers["start_ts"][usable]
    ends = numbers["start_ts"] + numbers["duration"]
    longest = max(float(starts.max() - starts.min()), _DAY_S)
    return np.asarray((ends <= starts.max() + _DAY_S) & (numbers["duration"] <= longest))


def _frame(
    numbers: dict[str, npt.NDArray[np.float64]], types: npt.NDArray[np.object_]
) -> pd.DataFrame:
    ops = pd.DataFrame({name: numbers[name].astype("int64") for name in _RANGES})
    ops["optype"] = types
    # Seconds come as float32; the sum start + duration is taken in integers so
    # that every table sees the same end.
    ops["start_ns"], ops["dur_ns"] = _to_ns(numbers["start_ts"]), _to_ns(numbers["duration"])
    ops["end_ns"] = ops["start_ns"] + ops["dur_ns"]
    # The order of the rows says nothing. Of operations that start together one without length
    # comes first: nothing else can have been over when the other began.
    order = ["step", "rank", "start_ns", "end_ns", "optype", *_RANGES]
    return ops.sort_values(list(dict.fromkeys(order)), kind="stable", ignore_index=True)


def _to_ns(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.round(seconds * _NS_PER_S).astype(np.int64)


def _names(types: npt.NDArray[np.object_]) -> str:
    found = sorted({str(name)[:40] for name in set(types.tolist())})
    return listed(found)
