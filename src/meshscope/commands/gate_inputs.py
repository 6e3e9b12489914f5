"""Opening what a gate compares: runs, traces of other tools, files of step times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshscope.probe.schema.message import message

from .open_capture import open_trace

if TYPE_CHECKING:
    from meshscope.analyze.gate.loaded import LoadedRun
    from meshscope.analyze.tables.results import Finding


def read_runs(
    paths: Sequence[Path], topology_file: Path | None, runs: Path, steps: str | None
) -> list[LoadedRun]:
    """Return all runs of all paths; runs of one name are distinguished by their file.

    Raises:
        MeshscopeError: One cannot be read, or stands there twice.
        OSError: A file cannot be read.
    """
    _require_once(paths)
    found = [(path, run) for path in paths for run in _read(path, topology_file, runs, steps)]
    named = Counter(run.name for _, run in found)
    counts: Counter[str] = Counter()
    loaded = []
    for path, run in found:
        name = run.name if named[run.name] == 1 else f"{path.stem}/{run.name}"
        counts[name] += 1
        loaded.append(replace(run, name=name if counts[name] == 1 else f"{name} ({counts[name]})"))
    return loaded


def _require_once(paths: Sequence[Path]) -> None:
    """Refuse a path that is there twice: its noise would count half."""
    from meshscope.probe.schema.errors import ConfigError

    seen = Counter(path.resolve() for path in paths)
    for path in paths:
        if seen[path.resolve()] > 1:
            raise ConfigError(
                message("refused.path_twice"),
                where=str(path),
                remedy=message("advice.each_run_once"),
            )


def _read(path: Path, topology_file: Path | None, runs: Path, steps: str | None) -> list[LoadedRun]:
    from meshscope.analyze.gate.captures import run_of
    from meshscope.analyze.gate.step_files import is_step_file, read_step_file
    from meshscope.probe.schema.errors import ConfigError

    if is_step_file(path):
        if steps is not None:
            raise ConfigError(
                message("refused.steps_of_file"), where=str(path), remedy=message("advice.cut_file")
            )
        return read_step_file(path)
    opened = open_trace(path, topology_file, runs, steps)
    name = str(opened.trace.run.get("run_id") or opened.trace.path.name)
    return [run_of(opened.measured(), name, broken_off(opened.ends()))]


def broken_off(ends: Sequence[Finding]) -> str:
    """Return how a job broke off by itself; empty where it did not, or was ended as a whole from outside."""
    from meshscope.probe.schema.terms import FindingKind

    return "; ".join(str(end.claim) for end in ends if end.kind is not FindingKind.JOB_ENDED)
