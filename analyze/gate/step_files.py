"""Step times without a capture: CSV or JSON of ``run,step,step_time_ns``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import numpy as np

from meshscope.probe.schema.errors import TraceFormatError

from .loaded import LoadedRun

COLUMNS = ("run", "step", "step_time_ns")
SUFFIXES = (".csv", ".json")
MOST_BYTES = 1 << 30
_LARGEST_NS = 1e18
"""32 years: what is longer is no step time."""
_LARGEST_STEP = 1 << 53
_REMEDY = "Write a header run,step,step_time_ns and one line a step"


def is_step_file(path: Path) -> bool:
    """Return whether a path is a table of step times rather than a trace, by its name and beginning."""
    if not path.is_file() or path.suffix.lower() not in SUFFIXES:
        return False
    if path.suffix.lower() == ".csv":
        return True
    with path.open("rb") as file:
        head = file.read(4096)
    return b'"step_time_ns"' in head and b'"traceEvents"' not in head


def read_step_file(path: Path) -> list[LoadedRun]:
    """Return the runs of a file of step times, in the order in which they appear.

    JSON is a list of objects with these keys, or an object with one list a key.

    Raises:
        TraceFormatError: It is no such file, or a value is no step time.
        OSError: It cannot be read.
    """
    if path.stat().st_size > MOST_BYTES:
        _refuse(path, f"is larger than {MOST_BYTES >> 30} GiB", "Keep only the three columns")
    raw = path.read_bytes()
    rows = _csv_rows(path, raw) if path.suffix.lower() == ".csv" else _json_rows(path, raw)
    runs: dict[str, dict[int, float]] = {}
    for place, row in rows:
        name, step, step_ns = _row(path, place, row)
        steps = runs.setdefault(name, {})
        if step in steps:
            _refuse(path, f"{place}: step {step} of run {name} is there twice", "Keep one of them")
        steps[step] = step_ns
    if not runs:
        _refuse(path, "holds no step", _REMEDY)
    return [_run(name, steps) for name, steps in runs.items()]


def _run(name: str, steps: Mapping[int, float]) -> LoadedRun:
    ordered = sorted(steps.items())
    return LoadedRun(name=name, step_ns=np.array([value for _, value in ordered], np.float64))


def _csv_rows(path: Path, raw: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        _refuse(path, "is not UTF-8 text", _REMEDY)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        _require_columns(path, names)
        for row in reader:
            yield f"line {reader.line_num}", row
    except csv.Error as error:
        _refuse(path, f"is not CSV: {error}", _REMEDY)


def _json_rows(path: Path, raw: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        _refuse(path, f"is not JSON: {error}", _REMEDY_JSON)
    rows = _of_columns(path, content) if isinstance(content, dict) else content
    if not isinstance(rows, list):
        _refuse(path, "is no list of steps", _REMEDY_JSON)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            _refuse(path, f"row {number} is no object", _REMEDY_JSON)
        _require_columns(path, row)
        yield f"row {number}", row


_REMEDY_JSON = 'Write a list of {"run": "a", "step": 1, "step_time_ns": 5e8}'


def _of_columns(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    _require_columns(path, content)
    columns = [content[name] for name in COLUMNS]
    if not all(isinstance(column, list) for column in columns) or len(set(map(len, columns))) != 1:
        _refuse(path, "its columns are no lists of one length", _REMEDY_JSON)
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]


def _require_columns(path: Path, names: Iterable[str]) -> None:
    found = list(names)
    for wanted in COLUMNS:
        if wanted not in found:
            near = get_close_matches(wanted, found, 1, 0.6)
            remedy = f"Rename {near[0]} to {wanted}" if near else _REMEDY
            _refuse(path, f"has no column {wanted}", remedy)


def _row(path: Path, place: str, row: Mapping[str, Any]) -> tuple[str, int, float]:
    name = row["run"]
    if name is None or isinstance(name, bool | list | dict) or not str(name).strip():
        _refuse(path, f"{place}: run is empty", "Name the run of every step")
    step = _number(path, place, "step", row["step"])
    if step != int(step) or abs(step) > _LARGEST_STEP:
        _refuse(path, f"{place}: step {row['step']} is no whole number", "Number the steps from 0")
    step_ns = _number(path, place, "step_time_ns", row["step_time_ns"])
    if not 0 < step_ns <= _LARGEST_NS:
        _refuse(
            path, f"{place}: step_time_ns {step_ns:g} is no step time", "Give nanoseconds above 0"
        )
    return str(name).strip(), int(step), step_ns


def _number(path: Path, place: str, column: str, value: object) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not math.isfinite(number):
        shown = "empty" if value in (None, "") else str(value)[:40]
        _refuse(path, f"{place}: {column} is {shown}, not a number", "Correct or remove that line")
    return number


def _refuse(path: Path, what: str, remedy: str) -> NoReturn:
    raise TraceFormatError(what, where=str(path), remedy=remedy)
