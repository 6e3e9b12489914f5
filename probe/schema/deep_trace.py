"""Deep traces in a run: how their files are named and described.

::

    rank00003/traces/step000348-000350.<ticket>_<pid>.json              as the process wrote it
    rank00003/traces/step000348-000350.<ticket>.rank00003.json.gz       sealed: compressed, hashed
    rank00003/traces/step000348-000350.<ticket>.rank00003.meta.json     what is known of it
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from .errors import RunDirectoryError
from .manifest import read_json

FOLDER = "traces"
_STEPS = r"step(\d{6,18})-(\d{6,18})\.([A-Za-z0-9][A-Za-z0-9_-]{0,63})"
_RAW = re.compile(_STEPS + r"_(\d{1,9})\.json")
_SEALED = re.compile(_STEPS + r"\.rank(\d{5,9})\.json\.gz")


class TraceName(NamedTuple):
    """What the name of a trace file says."""

    first_step: int
    """As the process counts its steps; so is the last."""
    last_step: int
    ticket: str
    """Names the request; the same on all ranks."""


def raw_stem(name: TraceName) -> str:
    """Return the file name of a trace as it is written, before the process id is added."""
    return f"step{name.first_step:06d}-{name.last_step:06d}.{name.ticket}.json"


def raw_file(folder: Path, name: TraceName, pid: int) -> Path:
    """Return the file that a process writes."""
    return folder / f"{raw_stem(name).removesuffix('.json')}_{pid}.json"


def sealed_file(folder: Path, name: TraceName, rank: int) -> Path:
    """Return the compressed file; the rank in its name tells readers whose it is."""
    return folder / f"{raw_stem(name).removesuffix('.json')}.rank{rank:05d}.json.gz"


def description_file(sealed: Path) -> Path:
    """Return the file beside a compressed one that describes it."""
    return sealed.with_suffix("").with_suffix(".meta.json")


def raw_name(path: Path) -> tuple[TraceName, int] | None:
    """Return what a raw file is and the process that wrote it, None for another file."""
    match = _RAW.fullmatch(path.name)
    if match is None:
        return None
    return TraceName(int(match[1]), int(match[2]), match[3]), int(match[4])


def sealed_name(path: Path) -> TraceName | None:
    """Return what a compressed file is, None for another file."""
    match = _SEALED.fullmatch(path.name)
    return None if match is None else TraceName(int(match[1]), int(match[2]), match[3])


def read_description(sealed: Path) -> dict[str, Any]:
    """Return the description of a sealed trace, {} where there is none that can be read.

    Its keys: rank, pid, ticket, first_step, last_step, size_bytes and sha256 of the
    compressed file, sealed_unix_ns.
    """
    try:
        return read_json(description_file(sealed))
    except RunDirectoryError:
        return {}
