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

from ..wording.message import Message, message
from .loaded import LoadedRun

COLUMNS = ("run", "step", "step_time_ns")
SUFFIXES = (".csv", ".json")
MOST_BYTES = 1 << 30
_LARGEST_NS = 1e18
"""32 years: what is longer is no step time."""
_LARGEST_STEP = 1 << 53
_REMEDY = message("steps_file.header")


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
        _refuse(
            path,
            message("steps_file.too_large", most_bytes=MOST_BYTES),
            message("steps_file.keep_columns"),
        )
    raw = path.read_bytes()
    rows = _csv_rows(path, raw) if path.suffix.lower() == ".csv" else _json_rows(path, raw)
    runs: dict[str, dict[int, float]] = {}
    for place, row in rows:
        name, step, step_ns = _row(path, place, row)
        steps = runs.setdefault(name, {})
        if step in steps:
            _refuse(
                path,
                message("steps_file.twice", place=place, step=step, run=name),
                message("steps_file.keep_one"),
            )
        steps[step] = step_ns
    if not runs:
        _refuse(path, message("steps_file.no_step"), _REMEDY)
    return [_run(name, steps) for name, steps in runs.items()]


def _run(name: str, steps: Mapping[int, float]) -> LoadedRun:
    ordered = sorted(steps.items())
    return LoadedRun(name=name, step_ns=np.array([value for _, value in ordered], np.float64))


def _csv_rows(path: Path, raw: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        _refuse(path, message("refused.no_utf8"), _REMEDY)
    reader = csv.DictReader(io.StringIO(text, newline=""))
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = names
        _require_columns(path, names)
        for row in reader:
            yield f"line {reader.line_num}", row
    except csv.Error as error:
        _refuse(path, message("refused.no_csv", error=str(error)), _REMEDY)


def _json_rows(path: Path, raw: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        content = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        _refuse(path, message("refused.no_json", error=str(error)), _REMEDY_JSON)
    rows = _of_columns(path, content) if isinstance(content, dict) else content
    if not isinstance(rows, list):
        _refuse(path, message("steps_file.no_list"), _REMEDY_JSON)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            _refuse(path, message("steps_file.no_object", row=number), _REMEDY_JSON)
        _require_columns(path, row)
        yield f"row {number}", row


_REMEDY_JSON = message("steps_file.rows", example='{"run": "a", "step": 1, "step_time_ns": 5e8}')


def _of_columns(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    _require_columns(path, content)
    columns = [content[name] for name in COLUMNS]
    if not all(isinstance(column, list) for column in columns) or len(set(map(len, columns))) != 1:
        _refuse(path, message("steps_file.unequal_columns"), _REMEDY_JSON)
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]


def _require_columns(path: Path, names: Iterable[str]) -> None:
    found = list(names)
    for wanted in COLUMNS:
        if wanted not in found:
            near = get_close_matches(wanted, found, 1, 0.6)
            remedy = message("steps_file.rename", found=near[0], wanted=wanted) if near else _REMEDY
            _refuse(path, message("steps_file.no_column", column=wanted), remedy)


def _row(path: Path, place: str, row: Mapping[str, Any]) -> tuple[str, int, float]:
    name = row["run"]
    if name is None or isinstance(name, bool | list | dict) or not str(name).strip():
        _refuse(path, message("steps_file.no_run", place=place), message("steps_file.name_runs"))
    step = _number(path, place, "step", row["step"])
    if step != int(step) or abs(step) > _LARGEST_STEP:
        _refuse(
            path,
            message("steps_file.no_number_of_step", place=place, step=str(row["step"])),
            message("steps_file.number_steps"),
        )
    step_ns = _number(path, place, "step_time_ns", row["step_time_ns"])
    if not 0 < step_ns <= _LARGEST_NS:
        _refuse(
            path,
            message("steps_file.no_step_time", place=place, step_ns=step_ns),
            message("steps_file.nanoseconds"),
        )
    return str(name).strip(), int(step), step_ns


def _number(path: Path, place: str, column: str, value: object) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not math.isfinite(number):
        shown = "empty" if value in (None, "") else str(value)[:40]
        _refuse(
            path,
            message("steps_file.no_value", place=place, column=column, value=shown),
            message("steps_file.correct"),
        )
    return number


def _refuse(path: Path, what: Message, remedy: Message) -> NoReturn:
    raise TraceFormatError(what, where=str(path), remedy=remedy)
