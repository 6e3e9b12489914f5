"""The ranks of a run that are on this node: which are alive, and what they do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..job.lifetimes import NewParts
from ..recording.rank_manifest import boot_id
from ..schema.errors import MeshscopeError
from ..schema.manifest import MANIFEST_NAME, read_json
from ..schema.ring import RING_NAME
from .live import WANTED, RankFigures, RankFollower, straggler_scores
from .ring_tail import RingTail

_SILENT_NS = 60_000_000_000
"""A rank whose process cannot be seen counts as alive while it has recorded that recently."""

FlopsOfRun = Callable[[Mapping[str, Any]], tuple[float, float] | None]
"""Run manifest -> (model FLOPs of a step, peak FLOP/s of one device), None if not known."""


@dataclass(slots=True)
class LocalRank:
    """One rank of this node."""

    directory: Path
    pid: int | None = None
    is_closed: bool = False
    was_seen: bool = False
    """Whether its process could be seen; not so where it has process ids of its own."""
    changed_ns: int = 0
    """Modification time of the manifest that was read."""
    tail: RingTail | None = None
    follower: RankFollower = field(default_factory=RankFollower)
    moved_ns: int = 0
    """When its ring was last seen to grow."""

    def close(self) -> None:
        """Close its ring."""
        if self.tail is not None:
            self.tail.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFigures:
    """The run as this node sees it."""

    ranks: Mapping[int, RankFigures]
    scores: Mapping[int, float]
    mfu: float | None
    run_id: str = ""


class LocalRanks:
    """Finds the ranks of this node and follows their rings.

    Args:
        run_path: The run directory.
        flops_of_run: What a step computes, where that is known.
    """

    def __init__(self, run_path: Path, flops_of_run: FlopsOfRun) -> None:
        self._run_path = run_path
        self._flops_of_run = flops_of_run
        self._boot_id = boot_id()
        self._host = os.uname().nodename
        self._ranks: dict[int, LocalRank] = {}
        self._new = NewParts(run_path)
        self._parts: dict[int, dict[int, Path]] = {}
        self._unread: dict[int, Path] = {}
        """Newest part of the ranks of which it is not known yet whether they are here."""
        self._run: dict[str, Any] = {}
        self._run_changed_ns = 0
        self._flops: tuple[float, float] | None = None

    def look(self, time_ns: int) -> None:
        """Look for new ranks and read manifests that have changed."""
        with suppress(OSError, MeshscopeError):
            for rank, number, path in self._new.take():
                parts = self._parts.setdefault(rank, {})
                parts[number] = path
                self._unread[rank] = parts[max(parts)]
            self._unread = {
                rank: path
                for rank, path in self._unread.items()
                if not self._is_read(rank, path, time_ns)
            }
            for known in self._ranks.values():
                self._manifest_of(known)
            changed_ns = (self._run_path / MANIFEST_NAME).stat().st_mtime_ns
            if changed_ns != self._run_changed_ns:
                self._run = read_json(self._run_path / MANIFEST_NAME)
                self._run_changed_ns = changed_ns
                self._flops = self._flops_of_run(self._run)

    def follow(self, time_ns: int) -> None:
        """Read what is new in the rings."""
        for rank in self._ranks.values():
            if rank.tail is None:
                with suppress(OSError, MeshscopeError):
                    rank.tail = RingTail(rank.directory / RING_NAME)
            if rank.tail is None:
                continue
            before = rank.tail.last_seq
            with suppress(OSError):
                rank.follower.add(rank.tail.new_records(WANTED))
            if rank.tail.last_seq != before:
                rank.moved_ns = time_ns

    def parts(self) -> dict[int, tuple[Path, ...]]:
        """Return the parts of the recording of each rank of this node that was seen."""
        return {rank: tuple(self._parts[rank].values()) for rank in self._ranks}

    def count(self) -> int:
        """Return how many ranks of this node there have been."""
        return len(self._ranks)

    def alive(self, time_ns: int) -> int:
        """Return how many ranks of this node still run."""
        return sum(_is_alive(rank, time_ns) for rank in self._ranks.values())

    def figures(self) -> LiveFigures:
        """Return what the ranks are doing now."""
        timed = str(self._run.get("device_name") or "").startswith("CPU")
        layout = self._run.get("layout")
        piped = isinstance(layout, dict) and _whole(layout.get("pp")) > 1
        ranks = {
            number: figures
            for number, rank in sorted(self._ranks.items())
            if (figures := rank.follower.figures(timed=timed, piped=piped)) is not None
        }
        return LiveFigures(
            ranks=ranks,
            scores=straggler_scores(ranks),
            mfu=self._mfu(ranks),
            run_id=str(self._run.get("run_id") or self._run_path.name),
        )

    def close(self) -> None:
        """Close the rings."""
        for rank in self._ranks.values():
            rank.close()

    def _is_read(self, number: int, directory: Path, time_ns: int) -> bool:
        """See whether a part that has come is of this node; False while nobody can tell."""
        known = self._ranks.get(number)
        if known is not None and known.directory != directory:
            self._ranks.pop(number).close()  # It records again, into a new part.
        found = LocalRank(directory, moved_ns=time_ns)
        manifest = self._manifest_of(found)
        if manifest is None:
            return False
        boot = manifest.get("boot_id")
        if boot == self._boot_id if boot else manifest.get("host") == self._host:
            self._ranks[number] = found
        return True

    def _manifest_of(self, rank: LocalRank) -> dict[str, Any] | None:
        """Return the manifest if it has changed and can be read, and what a rank is by it."""
        path = rank.directory / MANIFEST_NAME
        try:
            changed_ns = path.stat().st_mtime_ns
            if changed_ns == rank.changed_ns:
                return None
            manifest = read_json(path)
        except (OSError, MeshscopeError):
            return None
        rank.changed_ns = changed_ns
        rank.pid = pid if type(pid := manifest.get("pid")) is int else None
        rank.is_closed = manifest.get("closed_unix_ns") is not None
        return manifest

    def _mfu(self, ranks: Mapping[int, RankFigures]) -> float | None:
        """Return model FLOPs over what the devices could have done in the slowest rank's step."""
        world = _whole(self._run.get("world_size"))
        if self._flops is None or world < 1 or not ranks:
            return None
        flops, peak = self._flops
        step_s = max(figures.step_time_s for figures in ranks.values())
        return flops / (world * peak * step_s) if step_s > 0 and peak > 0 else None


def _whole(value: object) -> int:
    return value if type(value) is int else 0


def _is_alive(rank: LocalRank, time_ns: int) -> bool:
    if rank.is_closed:
        return False
    if _is_running(rank.pid):
        rank.was_seen = True
        return True
    return not rank.was_seen and time_ns - rank.moved_ns < _SILENT_NS


def _is_running(pid: int | None) -> bool:
    """Tell whether a process is there; a zombie has ended."""
    if pid is None:
        return False
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] not in ([], ["Z"], ["X"])
