"""The files of deep traces in a run: which are sealed, whole and those of their rank."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from meshscope.probe.schema.deep_trace import (
    FOLDER,
    TraceName,
    raw_name,
    read_description,
    sealed_file,
    sealed_name,
)
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.manifest import MANIFEST_NAME, part_directories, read_json
from meshscope.probe.schema.reading import file_hash

from ...wording.limits import Limit
from ...wording.message import Message, message
from ..file_limits import shared_notes

EVENT_BYTES = 250
"""Text of an event of a trace, at the least on average: operators of a CPU have 420, launches and kernels 270 and more."""
_LENGTH_BYTES = 4
"""At the end of a compressed file: how long it was, modulo 2**32."""
_CLAIMED = ".sealing"
"""What a file was called while it was being compressed, in runs of earlier versions."""


class DeepFile(msgspec.Struct, frozen=True):
    """One sealed trace of which nothing speaks against being read."""

    path: Path
    rank: int
    name: TraceName
    sealed_unix_ns: int
    sha256: str
    manifest: Mapping[str, Any]
    """That of the part of the recording in which it was made."""
    is_counted_alike: bool
    """False where the run may number the steps of this part otherwise than its process did."""


class Faults(msgspec.Struct):
    """What is missing, one sentence for all ranks that share it."""

    _notes: list[tuple[int, Message]] = msgspec.field(default_factory=list)

    def add(self, rank: int, note: Message) -> None:
        """Note something about a rank."""
        self._notes.append((rank, note))

    def limits(self) -> tuple[Limit, ...]:
        """Return each note once, with its ranks."""
        notes = sorted(self._notes, key=lambda one: (str(one[1]), one[0]))
        return tuple(shared_notes((rank, [note]) for rank, note in notes))


def trace_files(part: Path) -> list[Path]:
    """Return the files of deep traces of a part of a recording, sealed or not, sorted.

    Raises:
        OSError: The folder cannot be listed.
    """
    folder = part / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())


def expected_events(run_path: Path) -> Counter[int]:
    """Return how many events the traces of each step may have, of the rank with the most, by their sizes.

    Steps of a rank that was started again are those of its process: which of the run these are, only its records tell.
    Its events are in step -1.
    """
    most = Counter[int]()
    for parts in part_directories(run_path).values():
        own = Counter[int]()
        for path in (path for part in parts.values() for path in _listed(part)):
            if (name := sealed_name(path)) is None:
                continue
            steps = range(name.first_step, name.last_step + 1) if len(parts) == 1 else (-1,)
            own.update(dict.fromkeys(steps, _unpacked_bytes(path) // EVENT_BYTES // len(steps)))
        most |= own
    return most


def _listed(part: Path) -> list[Path]:
    try:
        return trace_files(part)
    except OSError:
        return []


def _unpacked_bytes(path: Path) -> int:
    with suppress(OSError), path.open("rb") as file:
        file.seek(-_LENGTH_BYTES, os.SEEK_END)
        return int.from_bytes(file.read(), "little")
    return 0


def deep_files(
    run_path: Path, manifests: Mapping[int, Mapping[str, Any]], faults: Faults
) -> dict[int, list[DeepFile]]:
    """Return the usable traces of each rank, in the order in which they were sealed.

    Args:
        run_path: The run directory.
        manifests: The manifest of each rank in the run, that of its newest part.
        faults: Gets what is left out.
    """
    found: dict[int, list[DeepFile]] = {}
    for rank, parts in part_directories(run_path).items():
        usable: list[DeepFile] = []
        for part in parts.values() if rank in manifests else ():
            try:
                files = trace_files(part)
            except OSError as error:
                faults.add(rank, message("missing.deep_folder", error=error.strerror))
                continue
            _note_unsealed(rank, files, run_path, faults)
            named = [(path, name) for path in files if (name := sealed_name(path)) is not None]
            if named:
                own = _Part(rank, part, len(parts) == 1, manifests[rank])
                usable += own.usable(named, faults)
        if usable:
            found[rank] = sorted(usable, key=lambda file: (file.sealed_unix_ns, file.path.name))
    return found


def _note_unsealed(rank: int, files: Iterable[Path], run_path: Path, faults: Faults) -> None:
    there = set(files)
    for path in sorted(there):
        name = raw_name(path.with_suffix(".json") if path.suffix == _CLAIMED else path)
        if name is not None and sealed_file(path.parent, name[0], rank) not in there:
            faults.add(
                rank,
                message(
                    "missing.deep_trace_unsealed",
                    ticket=name[0].ticket,
                    steps=_steps_of(name[0]),
                    run=str(run_path),
                    file=str(path.relative_to(run_path)),
                ),
            )


class _Part(msgspec.Struct, frozen=True):
    """One part of a rank's recording."""

    rank: int
    path: Path
    is_only: bool
    newest: Mapping[str, Any]

    def usable(self, named: Iterable[tuple[Path, TraceName]], faults: Faults) -> Iterable[DeepFile]:
        """Yield the traces that are what they say; the others are noted."""
        try:
            manifest = read_json(self.path / MANIFEST_NAME)
        except RunDirectoryError as error:
            faults.add(self.rank, message("missing.deep_traces_of_part", damage=error.what))
            return
        annotations = manifest.get("annotations")
        attached = isinstance(annotations, dict) and annotations.get("attached_while_running")
        for path, name in named:
            said = read_description(path)
            why = self._is_moved(manifest) or _mismatch(path, name, self.rank, said, manifest)
            if why is not None:
                faults.add(self.rank, left_out(name, why))
                continue
            sealed_ns = said.get("sealed_unix_ns")
            yield DeepFile(
                path,
                self.rank,
                name,
                sealed_ns if isinstance(sealed_ns, int) else 0,
                str(said["sha256"]),
                manifest,
                is_counted_alike=self.is_only and not attached,
            )

    def _is_moved(self, manifest: Mapping[str, Any]) -> Message | None:
        if _clock(manifest) == _clock(self.newest):
            return None
        return message("deep_trace.other_machine")


def _clock(manifest: Mapping[str, Any]) -> object:
    return manifest.get("boot_id") or manifest.get("host")


def _mismatch(
    path: Path, name: TraceName, rank: int, said: Mapping[str, Any], manifest: Mapping[str, Any]
) -> Message | None:
    """Return what of a trace contradicts its description or its rank; None if nothing does."""
    if not said:
        return message("deep_trace.no_description")
    described = TraceName(said["first_step"], said["last_step"], said["ticket"]) if all(
        key in said for key in ("first_step", "last_step", "ticket")
    ) else None  # fmt: skip
    if described != name or said.get("rank") != rank:
        return message("deep_trace.other_description")
    if said.get("pid") != manifest.get("pid"):
        of, was = str(said.get("pid")), str(manifest.get("pid"))
        return message("deep_trace.other_process", of=of, was=was)
    try:
        digest = file_hash(path)
    except OSError as error:
        return message("deep_trace.unreadable", error=error.strerror)
    return None if digest == said.get("sha256") else message("deep_trace.other_hash")


def left_out(name: TraceName, why: Message) -> Message:
    """Return why a trace is left out."""
    return message(
        "missing.deep_trace_left_out", ticket=name.ticket, steps=_steps_of(name), why=why
    )


def _steps_of(name: TraceName) -> tuple[int, int]:
    return name.first_step, name.last_step
