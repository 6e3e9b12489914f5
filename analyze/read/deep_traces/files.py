"""The files of deep traces in a run: which are sealed, whole and those of their rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshscope.probe.schema.deep_trace import (
    FOLDER,
    TraceName,
    raw_name,
    read_description,
    sealed_file,
    sealed_name,
)
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.listing import listed
from meshscope.probe.schema.manifest import MANIFEST_NAME, part_directories, read_json
from meshscope.probe.schema.reading import file_hash

_CLAIMED = ".sealing"
"""What a file was called while it was being compressed, in runs of earlier versions."""


@dataclass(frozen=True, slots=True)
class DeepFile:
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


@dataclass(slots=True)
class Faults:
    """What is missing, one clause for all ranks that share it."""

    _ranks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, rank: int, clause: str) -> None:
        """Note a clause about a rank."""
        self._ranks[clause].append(rank)

    def limits(self) -> tuple[str, ...]:
        """Return one sentence a clause."""
        return tuple(
            f"{listed_ranks(ranks)}: {clause}" for clause, ranks in sorted(self._ranks.items())
        )


def listed_ranks(ranks: Iterable[int]) -> str:
    """Return ``rank 3`` or ``ranks 0, 1, 2``; of many, the first ones and how many more."""
    found = sorted(set(ranks))
    return f"{'rank' if len(found) == 1 else 'ranks'} {listed(found)}"


def trace_files(part: Path) -> list[Path]:
    """Return the files of deep traces of a part of a recording, sealed or not, sorted.

    Raises:
        OSError: The folder cannot be listed.
    """
    folder = part / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())


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
                faults.add(rank, f"its deep traces cannot be listed: {error.strerror}")
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
                f"its deep trace {name[0].ticket} of {_steps_of(name[0])} is not sealed and left "
                "out: the node's agent does that when the trace is complete (`meshscope agent "
                f"--run {run_path}` while the ranks run); else open the file itself, "
                f"such as {path.relative_to(run_path)}",
            )


@dataclass(frozen=True, slots=True)
class _Part:
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
            faults.add(self.rank, f"its deep traces are left out: its manifest {error.what}")
            return
        annotations = manifest.get("annotations")
        attached = isinstance(annotations, dict) and annotations.get("attached_while_running")
        for path, name in named:
            said = read_description(path)
            why = self._is_moved(manifest) or _mismatch(path, name, self.rank, said, manifest)
            if why:
                faults.add(
                    self.rank, f"its deep trace {name.ticket} of {_steps_of(name)} {why}: left out"
                )
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

    def _is_moved(self, manifest: Mapping[str, Any]) -> str:
        if _clock(manifest) == _clock(self.newest):
            return ""
        return "is of another machine than the rank's last attempt"


def _clock(manifest: Mapping[str, Any]) -> object:
    return manifest.get("boot_id") or manifest.get("host")


def _mismatch(
    path: Path, name: TraceName, rank: int, said: Mapping[str, Any], manifest: Mapping[str, Any]
) -> str:
    """Return what of a trace contradicts its description or its rank; empty if nothing does."""
    if not said:
        return "has no description that can be read beside it"
    described = TraceName(said["first_step"], said["last_step"], said["ticket"]) if all(
        key in said for key in ("first_step", "last_step", "ticket")
    ) else None  # fmt: skip
    if described != name or said.get("rank") != rank:
        return "has the description of another trace"
    if said.get("pid") != manifest.get("pid"):
        return f"is of process {said.get('pid')}, the rank was process {manifest.get('pid')}"
    try:
        digest = file_hash(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if digest == said.get("sha256") else "differs from the hash that it was sealed with"


def _steps_of(name: TraceName) -> str:
    first, last = name.first_step, name.last_step
    return f"step {first}" if first == last else f"steps {first}-{last}"
