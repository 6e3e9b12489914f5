"""A diagnosis as files: numbers of its tables in Parquet, all else in one JSON value.

Whoever can write a run can write these files too. So nothing in them is executed, every value must have
the type that the diagnosis declares, every table its columns, and every sentence must be in the catalogue.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.schema.reading import open_file

from ..tables.classes import CLASSES
from ..tables.parquet_file import to_write
from ..tables.results import Diagnosis
from ..wording.message import Message, message_from_json, message_to_json

_NEEDED = (
    ("ledger", ("rank", "step", "step_ns", *CLASSES)),
    ("stragglers", ("rank", "pp", "dp", "tp", "slowdown", "excess_ns", "removal_gain_frac")),
    ("memory", ("stage",)),
    ("groups", ("group_id", "axis", "ranks")),
)
"""Tables of a diagnosis, with columns that each has."""
_MOST_BYTES = 1 << 28
"""Larger tables are not read: a file of some kB can hold as many zeros as there is memory."""


class NotKeptError(ValueError):
    """What is there is no diagnosis that this version wrote, or this one cannot be written."""


def write_diagnosis(diagnosis: Diagnosis, folder: Path) -> Any:
    """Write the tables of a diagnosis into a folder; return the JSON value of all else.

    Raises:
        NotKeptError: It could not be read back to the last digit.
        OSError: A file cannot be written.
    """
    try:
        value, tables = _written(diagnosis)
        for name, numbers in tables.items():
            with to_write(folder / name) as sink:
                pq.write_table(numbers, sink, compression="zstd")
        # What is lost on the way is found here, and not by a reader of the page.
        again = _written(read_diagnosis(json.loads(json.dumps(value)), folder))
    except (TypeError, pa.ArrowException) as error:
        raise NotKeptError(str(error)) from error
    if json.dumps(again[0]) != json.dumps(value) or not _are_equal(again[1], tables):
        raise NotKeptError("it is another one when it is read again")
    return value


def read_diagnosis(value: Any, folder: Path) -> Diagnosis:
    """Return the diagnosis of a JSON value, with its tables from a folder.

    Raises:
        NotKeptError: It is none.
        OSError: A table cannot be read.
    """

    def decode(kind: type, found: Any) -> Any:
        return _frame(found, folder) if kind is pd.DataFrame else found

    try:
        made = _revived(msgspec.convert(value, Diagnosis, dec_hook=decode))
        for said in _messages(made):
            str(said)
    except OSError:
        raise
    except (msgspec.MsgspecError, pa.ArrowException, LookupError, *_MALFORMED) as error:
        raise NotKeptError(f"{type(error).__name__}: {error}") from error
    for name, columns in _NEEDED:
        table = getattr(made, name)
        if len(table) and (missing := set(columns).difference(table)):
            raise NotKeptError(f"{name} lacks {min(missing)}")
    if len(made.ledger) and not all(np.issubdtype(kind, np.number) for kind in made.ledger.dtypes):
        raise NotKeptError("the ledger holds something else than numbers")
    return made  # type: ignore[no-any-return]


_MALFORMED = (ValueError, TypeError, AttributeError, RecursionError, OverflowError)


def _written(diagnosis: Diagnosis) -> tuple[Any, dict[str, pa.Table]]:
    tables: dict[str, pa.Table] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, pd.DataFrame):
            return _columns(value, tables)
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} has no JSON form")

    value = msgspec.to_builtins(_said(diagnosis), enc_hook=encode, str_keys=True)
    return value, tables


def _columns(frame: pd.DataFrame, tables: dict[str, pa.Table]) -> dict[str, Any]:
    """Return what is kept of a table in JSON; its numbers become a file."""
    if not isinstance(frame.index, pd.RangeIndex):
        raise TypeError("the rows of a table have names")
    numbers = [name for name, kind in frame.dtypes.items() if isinstance(kind, np.dtype)]
    numbers = [name for name in numbers if frame[name].dtype.kind in "biuf"]
    file = f"table-{len(tables)}.parquet"
    tables[file] = pa.table({name: frame[name].to_numpy() for name in numbers})
    others = {
        name: {"dtype": str(frame[name].dtype), "values": _plain_list(frame[name])}
        for name in frame.columns
        if name not in numbers
    }
    return {"file": file, "order": list(frame.columns), "rows": len(frame), "others": others}


def _plain_list(column: pd.Series) -> list[Any]:
    values = column.astype(object).tolist()
    return [None if value is pd.NA else value for value in values]


def _frame(kept: Mapping[str, Any], folder: Path) -> pd.DataFrame:
    file, rows = str(kept["file"]), int(kept["rows"])
    if "/" in file:
        raise NotKeptError("a table lies elsewhere")
    with open_file(folder / file, most_bytes=_MOST_BYTES) as source:
        stored = pq.ParquetFile(io.BytesIO(source.read()))
    whole = stored.metadata
    size = sum(whole.row_group(at).total_byte_size for at in range(whole.num_row_groups))
    if size > _MOST_BYTES or rows * len(kept["order"]) * 8 > 4 * _MOST_BYTES:
        raise NotKeptError("a table is too large")
    numbers = stored.read()
    columns: dict[str, Any] = {name: numbers[name].to_numpy() for name in numbers.column_names}
    for name, other in kept["others"].items():
        columns[name] = pd.Series(other["values"], dtype=_dtype(other["dtype"]))
    if {len(values) for values in columns.values()} - {rows}:
        raise NotKeptError("columns of a table differ in length")
    frame = pd.DataFrame({name: columns[name] for name in kept["order"]}, index=range(rows))
    return frame.reset_index(drop=True)


def _dtype(name: str) -> str:
    if name not in ("object", "Float64", "Int64", "boolean", "str", "string", "bool"):
        raise NotKeptError(f"a column is of an unknown kind, {name!r:.40}")
    return name


def _are_equal(one: Mapping[str, pa.Table], other: Mapping[str, pa.Table]) -> bool:
    """Return whether tables are equal to the last bit, so that NaN equals NaN."""
    return one.keys() == other.keys() and all(
        one[name].schema == table.schema
        and all(
            np.array_equal(column.to_numpy(), again.to_numpy(), equal_nan=True)
            for column, again in zip(table.columns, one[name].columns, strict=True)
        )
        for name, table in other.items()
    )


def _said(value: Any) -> Any:
    """Return a value with its messages as JSON has them, and enumerations as their texts."""
    if isinstance(value, Message):
        return message_to_json(value)
    if is_dataclass(value):
        return {field.name: _said(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _said(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_said(one) for one in value]
    return value.value if isinstance(value, Enum) else value


def _revived(value: Any) -> Any:
    """Return a value with the messages in its messages, which no type declares."""
    if isinstance(value, Message):
        return message_from_json({"code": value.code, "values": dict(value.values)})
    if is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: _revived(getattr(value, field.name)) for field in fields(value)}
        return replace(value, **changed)
    if isinstance(value, dict):
        return {name: _revived(one) for name, one in value.items()}
    return tuple(map(_revived, value)) if type(value) is tuple else value


def _messages(value: Any) -> Iterator[Message]:
    if isinstance(value, Message):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _messages(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _messages(one)
    elif type(value) is tuple:
        for one in value:
            yield from _messages(one)
