"""Rows of steps whose records were removed: the summaries of a run stay, whatever becomes of its records.

They lie beside the tables, as a copy of the summaries before the removal. Whoever summarises the run again takes from there
the rows that its records no longer give.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import RunDirectoryError

from ..tables.parquet_file import to_read, to_write
from ..tables.table_folder import FOLDER as TABLES_FOLDER
from ..tables.table_folder import close_to_others, drafted
from ..wording.message import message
from .summary import COUNTED, SCHEMA

_STEM = "kept_rows."
_FILES_TOGETHER = 8
"""Files of summaries, of 32 ranks each, in one of kept rows."""


def keep_rows(run: Path, folder: Path, names: Sequence[str]) -> None:
    """Copy the summaries of a run beside its tables, in place of those that were kept before.

    Args:
        run: A run that was ingested.
        folder: Where its summaries are.
        names: Their files.

    Raises:
        OSError: They cannot be written.
        RunDirectoryError: A file of the summaries is damaged.
    """
    tables = run / TABLES_FOLDER
    before = _newest(run)
    number = 0 if before is None else _number(before) + 1
    with drafted(tables, _STEM) as draft:
        made = draft / "rows"
        made.mkdir()
        for at in range(0, len(names), _FILES_TOGETHER):
            _put_together([folder / name for name in names[at : at + _FILES_TOGETHER]], made)
        close_to_others(made)
        # Those of before go last: a call that is killed loses none.
        made.rename(tables / f"{_STEM}{number}")
    if before is not None:
        shutil.rmtree(before, ignore_errors=True)


def _put_together(files: Sequence[Path], folder: Path) -> None:
    """Write the rows of some files as one: 256 ranks are one request to a store."""
    rows = pa.concat_tables(_rows_of(file) for file in files)
    first, last = files[0].name.split("-")[0], files[-1].name.split(".")[0].split("-")[1]
    with to_write(folder / f"{first}-{last}.parquet") as sink:
        pq.write_table(rows, sink, compression="lz4", use_dictionary=False)


def kept_names(run: Path) -> list[str]:
    """Return what the kept rows of a run are named: they change with every removal."""
    newest = _newest(run)
    return [] if newest is None else [newest.name, *sorted(file.name for file in newest.iterdir())]


def with_kept(run: Path, ranks: Sequence[int], rows: pa.Table) -> pa.Table:
    """Return the rows of some ranks with those of steps that have no records any more; these count no record.

    Args:
        run: A run directory.
        ranks: The ranks.
        rows: What their records give, as ``SCHEMA`` has it.

    Raises:
        RunDirectoryError: A file of kept rows is damaged.
    """
    newest = _newest(run)
    if newest is None:
        return rows
    kept = _read(newest, ranks)
    cell = ["rank", "step"]
    gone = kept.select(cell).append_column("at", pa.array(np.arange(len(kept))))
    gone = gone.join(rows.select(cell), keys=cell, join_type="left anti")
    added = kept.take(gone["at"])
    for name in (f"{table}_rows" for table in COUNTED):
        place = SCHEMA.get_field_index(name)
        zeros = pa.array(np.zeros(len(added), np.int32))
        added = added.set_column(place, SCHEMA.field(name), zeros)
    found = pa.concat_tables([rows, added])
    return found.sort_by([(name, "ascending") for name in cell]).combine_chunks()


def _read(folder: Path, ranks: Sequence[int]) -> pa.Table:
    parts = [SCHEMA.empty_table()]
    wanted = pa.array(sorted(ranks), pa.int32())
    for file in sorted(folder.glob("*.parquet")):
        first, last = map(int, file.name.split(".")[0].split("-"))
        if last < min(ranks) or first > max(ranks):
            continue
        part = _rows_of(file)
        parts.append(part.filter(pc.is_in(part["rank"], value_set=wanted)))
    return pa.concat_tables(parts)


def _rows_of(file: Path) -> pa.Table:
    try:
        with to_read(file) as source:
            return pq.read_table(source, schema=SCHEMA)
    except (OSError, pa.ArrowException) as error:
        raise RunDirectoryError(
            message("refused.summaries_unreadable", reason=str(error).rstrip(".")),
            where=str(file),
        ) from error


def _newest(run: Path) -> Path | None:
    found = [place for place in (run / TABLES_FOLDER).glob(f"{_STEM}*") if _number(place) >= 0]
    return max(found, key=_number, default=None)


def _number(place: Path) -> int:
    with suppress(ValueError):
        return int(place.name.removeprefix(_STEM))
    return -1
