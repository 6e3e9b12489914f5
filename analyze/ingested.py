"""Another tool's traces as a run directory of ours: columnar tables, keyed by content.

``<runs>/<name>-<key>/tables/<table>/rank=00000.parquet`` holds the rows of one rank;
a table without ranks is one file, ``all.parquet``. The manifest says where they
came from, what was missing, and the key: the hash of the names and contents of
the source files. Opening such a run reads columns, and parses nothing.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import MANIFEST_NAME, read_json
from meshscope.probe.schema.rundir import create_run, list_runs
from meshscope.probe.schema.tables import RUN, TABLES

from .trace import Trace

FOLDER = "tables"
_SECTION = "ingested"
_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """A run directory made from other traces."""

    path: Path
    trace: Trace
    source_bytes: int
    reused: bool
    """True where the same content was ingested before."""


def content_key(files: Iterable[Path]) -> tuple[str, int]:
    """Return the hash of the names and contents of files, and their size in bytes.

    Raises:
        OSError: A file cannot be read.
    """
    whole, size = hashlib.sha256(), 0
    for file in sorted(files):
        whole.update(file.name.encode("utf-8", "surrogateescape") + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(8 * _MEGABYTE):
                whole.update(block)
                size += len(block)
    return whole.hexdigest(), size


def source_files(path: Path) -> list[Path]:
    """Return the regular files behind a path: itself, a folder's, or those of a glob."""
    if path.is_dir():
        return [file for file in sorted(path.rglob("*")) if file.is_file()]
    if path.is_file():
        return [path]
    return [file for file in sorted(path.parent.glob(path.name)) if file.is_file()]


def find_ingested(runs_dir: Path, key: str) -> Path | None:
    """Return the run that holds this content, None if there is none."""
    if not runs_dir.is_dir():
        return None
    for run in list_runs(runs_dir):
        if _section(run).get("content_key") == key:
            return run
    return None


def write_ingested(trace: Trace, runs_dir: Path, key: str) -> Path:
    """Write the tables of a trace as a new run directory; return its path.

    A run that could not be written whole is removed again.

    Raises:
        ConfigError: A run of that name exists.
        OSError: It cannot be written.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", trace.path.name).strip("-._")[:80] or "trace"
    run_path = create_run(runs_dir, f"{name}-{key[:12]}", _manifest(trace, key))
    try:
        tables = {**trace.tables, "run": _run_table(trace)}
        for table_name, table in tables.items():
            _write_table(run_path / FOLDER / table_name, table)
    except BaseException:
        shutil.rmtree(run_path, ignore_errors=True)
        raise
    return run_path


def is_ingested(path: Path) -> bool:
    """Return whether a run directory was made from other traces."""
    return bool(_section(path))


def read_ingested(path: Path) -> Trace:
    """Open a run that was made from other traces.

    Raises:
        RunDirectoryError: Its manifest or a table cannot be read.
    """
    manifest = read_json(path / MANIFEST_NAME)
    section = manifest[_SECTION]
    tables = {name: spec.conform(_read_table(path, name)) for name, spec in TABLES.items()}
    layout = manifest.get("layout")
    return Trace(
        path=path,
        run=tables["run"].to_pylist()[0],
        layout=ParallelLayout.from_json(layout) if layout else None,
        ranks=tuple(section["ranks"]),
        tables=tables,
        limits=tuple(section["limits"]),
        origin=section["origin"],
        per_step_clock=section["per_step_clock"],
    )


def _section(path: Path) -> Mapping[str, Any]:
    try:
        section = read_json(path / MANIFEST_NAME).get(_SECTION)
    except (OSError, RunDirectoryError):
        return {}
    return section if isinstance(section, dict) else {}


def _manifest(trace: Trace, key: str) -> dict[str, Any]:
    return {
        "world_size": trace.run.get("world_size"),
        "layout": trace.layout.to_json() if trace.layout is not None else None,
        _SECTION: {
            "content_key": key,
            "origin": trace.origin,
            "source": str(trace.path),
            "per_step_clock": trace.per_step_clock,
            "ranks": list(trace.ranks),
            "limits": list(trace.limits),
        },
    }


def _run_table(trace: Trace) -> pa.Table:
    row = {name: trace.run.get(name) for name in RUN.column_names()}
    return RUN.conform(pa.Table.from_pylist([row]))


def _write_table(folder: Path, table: pa.Table) -> None:
    folder.mkdir(parents=True)
    if "rank" not in table.column_names:
        pq.write_table(table, folder / "all.parquet", compression="zstd")
        return
    ranks = table["rank"].to_numpy()
    for rank in sorted(set(ranks.tolist())):
        part = table.filter(pa.array(ranks == rank))
        pq.write_table(part, folder / f"rank={rank:05d}.parquet", compression="zstd")


def _read_table(path: Path, name: str) -> pa.Table:
    files = sorted((path / FOLDER / name).glob("*.parquet"))
    try:
        parts = [pq.ParquetFile(file).read() for file in files]
    except (OSError, pa.ArrowException) as error:
        raise RunDirectoryError(
            f"the table {name} is damaged: {error}",
            where=str(path),
            remedy="Remove the run and ingest its source again",
        ) from error
    spec = TABLES[name]
    return pa.concat_tables([spec.conform(part) for part in parts]) if parts else spec.empty()
