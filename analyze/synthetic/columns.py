"""Rows gathered as numpy columns, and made into declared tables at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshscope.probe.schema.columns import arrow_type
from meshscope.probe.schema.tables import TABLES

from ..tables.arrays import IntArray

Block = dict[str, npt.NDArray[np.int64] | int]
"""Values of equal shape (or one for all) by column; a category is a position in its words."""


@dataclass(slots=True)
class Rows:
    """The rows of one table, in blocks."""

    table: str
    words: dict[str, list[str]]
    """What the numbers in the category columns stand for."""
    blocks: list[dict[str, IntArray]] = field(default_factory=list)

    def add(self, block: Block, keep: npt.NDArray[np.bool_]) -> None:
        """Append the kept rows of a block; ``keep`` gives the shape of all columns."""
        flat = {
            name: np.broadcast_to(np.asarray(values), keep.shape)[keep]
            for name, values in block.items()
        }
        types = {c.name: c.dtype for c in TABLES[self.table].columns}
        self.blocks.append(
            {
                name: values.astype(np.int32) if _is_narrow(types.get(name, "")) else values
                for name, values in flat.items()
            }
        )

    def columns(self, order: tuple[str, ...]) -> dict[str, IntArray]:
        """Return the columns sorted by the given ones, the first one first; blocks are freed."""
        blocks, self.blocks = self.blocks, []
        if not blocks:
            return {}
        whole = {}
        for name in list(blocks[0]):
            whole[name] = np.concatenate([block.pop(name) for block in blocks])
        place = np.lexsort([whole[name] for name in reversed(order)])
        return {name: whole.pop(name)[place] for name in list(whole)}


def _is_narrow(dtype: str) -> bool:
    return dtype in ("int32", "category")


def to_table(
    name: str,
    columns: dict[str, IntArray],
    words: dict[str, list[str]],
    unknown: dict[str, npt.NDArray[np.bool_]],
) -> pa.Table:
    """Return a declared table.

    Args:
        name: The table.
        columns: Its columns; a nullable one that is left out is unknown.
        words: Values of category columns.
        unknown: Rows whose value is null, by column.
    """
    spec = TABLES[name]
    if not columns:
        return spec.empty()
    arrays, made = {}, dict[int, pa.Array]()
    for column in spec.columns:
        if column.name not in columns:
            continue
        values, mask = columns[column.name], unknown.get(column.name)
        if column.name in words:
            codes = pa.array(values)
            arrays[column.name] = pa.DictionaryArray.from_arrays(codes, words[column.name])
            continue
        # Columns that share one numpy array share one Arrow array, and its memory.
        if id(values) not in made or mask is not None:
            made[id(values)] = pa.array(values, arrow_type(column.dtype), mask=mask)
        arrays[column.name] = made[id(values)]
    return spec.conform(pa.table(arrays))
