"""How a table is declared: columns with a type, a unit and a meaning.

Declarations are plain Python, so a training process can import them without
pyarrow; the Arrow forms are made on demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import SchemaError
from .message import message

if TYPE_CHECKING:
    import pyarrow as pa

DTYPES = ("bool", "int8", "int16", "int32", "int64", "float64", "string", "category", "list<int32>")
"""Declarable types. ``category`` is a string stored once per distinct value."""
_DURATIONS = ("dur_ns", "wait_ns", "cpu_ns", "cost_ns", "queued_ns")
"""Names of columns in ns that are no instants end so."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: what it is called, holds, is measured in, and means."""

    name: str
    dtype: str
    unit: str
    """``ns``, ``bytes``, ``flop/s`` …; ``id`` for identifiers, ``message`` for the cells
    of ``message_to_cell``, ``1`` for counts and names."""
    meaning: str
    nullable: bool = False
    """Null means *not known*; a known absence has its own value (``-1`` for ids)."""

    def __post_init__(self) -> None:
        """Refuse an undeclared dtype where it is written, not where it is used."""
        if self.dtype not in DTYPES:
            raise SchemaError(
                message("refused.unknown_dtype", dtype=self.dtype), where=f"column {self.name}"
            )

    @property
    def is_instant(self) -> bool:
        """Return whether its values are points in time, which move with the clock they were read on."""
        in_ns = self.dtype == "int64" and self.unit == "ns"
        return in_ns and not self.name.endswith(_DURATIONS)


def ns_column(name: str, meaning: str, *, nullable: bool = False) -> Column:
    """Return a column of instants or durations."""
    return Column(name, "int64", "ns", meaning, nullable)


RANK = Column("rank", "int32", "id", "global rank")
"""The rank that a row is of."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """One table of the contract."""

    name: str
    row: str
    """What one row is, as a phrase."""
    columns: tuple[Column, ...]

    def column_names(self) -> tuple[str, ...]:
        """Return the declared names in order."""
        return tuple(column.name for column in self.columns)

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema, with the table name in its metadata."""
        import pyarrow as pa

        fields = [pa.field(c.name, arrow_type(c.dtype), nullable=c.nullable) for c in self.columns]
        return pa.schema(fields, metadata={b"meshscope.table": self.name.encode()})

    def empty(self) -> pa.Table:
        """Return a table of no rows."""
        return self.arrow_schema().empty_table()

    def conform(self, table: pa.Table) -> pa.Table:
        """Return ``table`` with exactly the declared columns, order and types.

        A missing nullable column is filled with nulls, an undeclared one is
        dropped (a newer writer may know more than this reader).

        Raises:
            SchemaError: A column that may not be null is missing or has nulls,
                or a value does not fit the declared type.
        """
        import pyarrow as pa

        arrays = []
        for column in self.columns:
            where = f"{self.name}.{column.name}"
            if column.name not in table.column_names:
                if not column.nullable:
                    raise SchemaError(message("refused.column_missing"), where=where)
                arrays.append(pa.nulls(table.num_rows, arrow_type(column.dtype)))
                continue
            try:
                array = _cast(table.column(column.name), column.dtype)
            except pa.ArrowMemoryError:
                raise  # It says nothing of the column.
            except pa.ArrowException as error:
                raise SchemaError(
                    message("refused.not_of_dtype", dtype=column.dtype, error=error), where=where
                ) from error
            if not column.nullable and array.null_count:
                raise SchemaError(message("refused.nulls", count=array.null_count), where=where)
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=self.arrow_schema())

    def to_markdown(self) -> str:
        """Return the reference section of this table for docs/tables.md."""
        lines = [f"## {self.name}", "", f"One row is {self.row}.", ""]
        lines += ["| column | type | unit | null | meaning |", "|---|---|---|---|---|"]
        for c in self.columns:
            null = "yes" if c.nullable else ""
            lines.append(f"| {c.name} | {c.dtype} | {c.unit} | {null} | {c.meaning} |")
        return "\n".join([*lines, ""])


def arrow_type(dtype: str) -> pa.DataType:
    """Return the Arrow type of a declared dtype."""
    import pyarrow as pa

    if dtype == "category":
        return pa.dictionary(pa.int32(), pa.string())
    if dtype == "list<int32>":
        return pa.list_(pa.int32())
    if dtype == "bool":
        return pa.bool_()
    return pa.type_for_alias(dtype)


def _cast(array: pa.ChunkedArray, dtype: str) -> pa.ChunkedArray:
    import pyarrow as pa

    target = arrow_type(dtype)
    if array.type == target:
        return array
    if dtype == "category":
        if pa.types.is_dictionary(array.type):
            array = array.cast(array.type.value_type)
        return array.cast(pa.string()).dictionary_encode().cast(target)
    return array.cast(target)
