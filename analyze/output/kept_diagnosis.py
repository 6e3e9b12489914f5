"""A diagnosis as files: numbers of its tables in Parquet, all else in one JSON value.

Whoever can write a run can write these files too. So nothing in them is executed, every value must have
the type that the diagnosis declares, every table its columns, and a sentence is a code of the catalogue;
the names in a sentence may be any text. Parquet is not compressed, and its footer is checked before its
numbers are read: no file takes more memory than it says. The JSON value names the content of each file by
its SHA-256, so that files of two writers never mix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.schema.manifest import create_file
from meshscope.probe.schema.reading import open_file

from ..tables.classes import CLASSES
from ..tables.results import Diagnosis
from ..wording.message import Message, message_from_json

_NEEDED = (
    ("ledger", ("rank", "step", "step_ns", *CLASSES)),
    ("stragglers", ("rank", "pp", "dp", "tp", "slowdown", "excess_ns", "removal_gain_frac")),
    ("memory", ("stage",)),
    ("groups", ("group_id", "axis", "ranks")),
)
"""Tables of a diagnosis, with columns that each has."""
_MOST_BYTES = 1 << 28
"""Larger tables are not read, nor written: a file of some kB can name as many zeros as there is memory."""
_CELL_BYTES = 8
"""A cell of a table is at least one number."""


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
        for name, content in tables.items():
            with open(create_file(folder / name), "wb") as sink:
                sink.write(content)
        # What is lost on the way is found here, and not by a reader of the page.
        again, _ = _written(read_diagnosis(json.loads(json.dumps(value)), folder))
    except (TypeError, pa.ArrowException) as error:
        raise NotKeptError(str(error)) from error
    if json.dumps(again) != json.dumps(value):
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


def _written(diagnosis: Diagnosis) -> tuple[Any, dict[str, pa.Buffer]]:
    """Return a diagnosis as JSON has it, and the contents of its files by name."""
    tables: dict[str, pa.Buffer] = {}

    def encode(value: Any) -> Any:
        if isinstance(value, pd.DataFrame):
            return _columns(value, tables)
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, Mapping):
            return dict(value)
        raise TypeError(f"{type(value).__name__} has no JSON form")

    return msgspec.to_builtins(diagnosis, enc_hook=encode, str_keys=True), tables


def _columns(frame: pd.DataFrame, tables: dict[str, pa.Buffer]) -> dict[str, Any]:
    """Return what is kept of a table in JSON; its numbers become a file."""
    if not isinstance(frame.index, pd.RangeIndex):
        raise TypeError("the rows of a table have names")
    numbers = [name for name, kind in frame.dtypes.items() if isinstance(kind, np.dtype)]
    numbers = [name for name in numbers if frame[name].dtype.kind in "biuf"]
    sink = pa.BufferOutputStream()
    table = pa.table({name: frame[name].to_numpy() for name in numbers})
    pq.write_table(table, sink, compression="none")
    content = sink.getvalue()
    file = f"table-{len(tables)}.parquet"
    tables[file] = content
    others = {
        name: {"dtype": str(frame[name].dtype), "values": _plain_list(frame[name])}
        for name in frame.columns
        if name not in numbers
    }
    return {
        "file": file,
        "sha256": sha256(content).hexdigest(),
        "order": list(frame.columns),
        "rows": len(frame),
        "others": others,
    }


def _plain_list(column: pd.Series) -> list[Any]:
    values = column.astype(object).tolist()
    return [None if value is pd.NA else value for value in values]


def _frame(kept: Mapping[str, Any], folder: Path) -> pd.DataFrame:
    rows, order, others = int(kept["rows"]), list(kept["order"]), kept["others"]
    if rows * max(len(order), 1) * _CELL_BYTES > _MOST_BYTES:
        raise NotKeptError("a table is too large")
    stored = _stored(kept, folder)
    names = [name for name in order if name not in others]
    _check_footer(stored, names, rows)
    numbers = stored.read()
    columns: dict[str, Any] = {name: numbers[name].to_numpy() for name in names}
    for name, other in others.items():
        columns[name] = pd.Series(other["values"], dtype=_dtype(other["dtype"]))
    if {len(values) for values in columns.values()} - {rows} or (rows and not columns):
        raise NotKeptError("columns of a table differ in length")
    frame = pd.DataFrame({name: columns[name] for name in order}, index=range(rows))
    return frame.reset_index(drop=True)


def _stored(kept: Mapping[str, Any], folder: Path) -> pq.ParquetFile:
    """Return the file of a table; of its content only the footer has been unpacked."""
    file = str(kept["file"])
    if os.path.basename(file) != file:
        raise NotKeptError("a table lies elsewhere")
    with open_file(folder / file, most_bytes=_MOST_BYTES) as source:
        content = source.read()
    if sha256(content).hexdigest() != kept["sha256"]:
        raise NotKeptError("a table is of another analysis, or damaged")
    return pq.ParquetFile(pa.BufferReader(content))


def _check_footer(stored: pq.ParquetFile, names: list[str], rows: int) -> None:
    """Refuse a file that holds something else than some columns of numbers, uncompressed, in so many rows."""
    schema, footer = stored.schema_arrow, stored.metadata
    if schema.names != names or footer.num_columns != len(names):
        raise NotKeptError("a table has other columns")
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if not all(any(is_kind(kind) for is_kind in kinds) for kind in schema.types):
        raise NotKeptError("a table holds something else than numbers")
    groups = [footer.row_group(at) for at in range(footer.num_row_groups)]
    if names and not footer.num_rows == sum(group.num_rows for group in groups) == rows:
        raise NotKeptError("a table has another number of rows")
    for group in groups:
        for at in range(group.num_columns):
            column = group.column(at)
            if (column.compression, column.num_values) != ("UNCOMPRESSED", group.num_rows):
                raise NotKeptError("a table is packed in another way")


def _dtype(name: str) -> str:
    if name not in ("object", "Float64", "Int64", "boolean", "str", "string", "bool"):
        raise NotKeptError(f"a column is of an unknown kind, {name!r:.40}")
    return name


def _revived(value: Any) -> Any:
    """Return a value with the messages in its messages, which no type declares; each has its sentence."""
    if isinstance(value, Message):
        said = message_from_json({"code": value.code, "values": dict(value.values)})
        str(said)
        return said
    if is_dataclass(value) and not isinstance(value, type):
        changed = {field.name: _revived(getattr(value, field.name)) for field in fields(value)}
        return replace(value, **changed)
    if isinstance(value, dict):
        return {name: _revived(one) for name, one in value.items()}
    return tuple(map(_revived, value)) if type(value) is tuple else value
