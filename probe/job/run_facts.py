"""Facts about the whole job, which rank 0 puts into the run's manifest."""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshscope import __version__

from ..clock import unix_ns
from ..recording.parts import other_process
from ..recording.rank_manifest import boot_id
from ..safety.notices import tell
from ..schema.errors import ConfigError, RunDirectoryError
from ..schema.layout import ParallelLayout
from ..schema.manifest import (
    JOB_KEY,
    MANIFEST_NAME,
    OBSERVED_KEY,
    create_directory,
    newest_part,
    read_json,
)
from ..schema.message import message
from ..schema.model.fields import model_fields
from ..schema.rundir import clear_run_manifest, update_run_manifest, write_run_manifest
from ..schema.terms import ScheduleKind
from .identity import COMMAND_VARIABLE, Identity

_FACTS = frozenset(
    {
        "layout",
        "model",
        "schedule",
        "microbatches",
        "tokens_per_step",
        "flops_per_token",
        "peak_flops",
        "peak_source",
        "device_name",
    }
)
_REFINED = frozenset({"layout", "observed"})
"""Facts that are learned piece by piece, the last piece being the best."""


def command_of_job(environment: Mapping[str, str]) -> list[str]:
    """Return what started the job, as its launcher recorded it, else the arguments of this process."""
    try:
        command = json.loads(environment[COMMAND_VARIABLE])
    except (KeyError, ValueError, RecursionError):
        return list(sys.argv)
    is_one = isinstance(command, list) and all(isinstance(word, str) for word in command)
    return command if is_one else list(sys.argv)


class RunFacts:
    """What is known of the job; kept until there is a run directory to write to.

    Facts that come later than that are kept for ``write_due``, which a thread calls that
    may wait for a disk.
    """

    def __init__(self) -> None:
        self._path: Path | None = None
        self._writes = True
        self._is_due = False
        self._is_given_up = False
        self._lock = threading.RLock()
        self._said: dict[str, Any] = {}
        self._learned: dict[str, Any] = {}
        self._refinable: set[str] = set()
        self._mesh: dict[str, Any] = {}
        self._chunks = 1
        self._of_this: dict[str, Any] = {}
        self._annotate: Callable[[str, Any], None] | None = None
        self._observed: Mapping[str, Any] = {}

    @property
    def waiting(self) -> bool:
        """Tell whether facts were stated and there is nowhere to write them yet."""
        return self._path is None and bool(self._said)

    def open(self, path: Path, identity: Identity) -> None:
        """Make sure that the run directory exists; on rank 0 write what is known.

        Raises:
            OSError: The directory or its manifest cannot be written.
            MeshscopeError: An existing manifest is damaged or of another version.
        """
        create_directory(path)
        self._path = path
        before = newest_part(path, 0)
        # Of two jobs at once the second records nothing, and the facts stay those of the first.
        is_taken = before is not None and other_process(before) is not None
        self._writes = identity.rank == 0 and not is_taken
        if not self._writes:
            return
        own = {"command": command_of_job(os.environ), "world_size": identity.world_size}
        if not (path / MANIFEST_NAME).exists():
            write_run_manifest(path, {"created_unix_ns": unix_ns(), "command": own["command"]})
        else:
            self._follow_others(path)
        self._learned = {**own, **self._learned}
        self._write()

    def give_up(self) -> None:
        """Write nothing any more: nothing is recorded, or the disk does not answer."""
        self._is_given_up = True

    def tell(self, annotate: Callable[[str, Any], None]) -> None:
        """Have the facts of this attempt in the manifest of rank 0 too, now and as they come.

        Those of the run are of its newest attempt. Another rank says what it observed itself.
        """
        self._annotate = annotate
        if self._writes:
            annotate(JOB_KEY, self._of_this)
        elif self._observed:
            annotate(OBSERVED_KEY, self._observed)

    def _follow_others(self, path: Path) -> None:
        """Clear what an earlier attempt has written; go on where this process has written it."""
        before = newest_part(path, 0)
        if before is None:
            return
        try:
            manifest = read_json(before / MANIFEST_NAME)
        except RunDirectoryError:
            return
        annotations = manifest.get("annotations")
        facts = annotations.get(JOB_KEY) if isinstance(annotations, dict) else None
        if not isinstance(facts, dict):
            facts = {"world_size": None}
        if manifest.get("pid") == os.getpid() and manifest.get("boot_id") == boot_id():
            self._of_this = dict(facts)
        else:
            clear_run_manifest(path, {*facts, "command"})

    def add(self, facts: Mapping[str, Any]) -> None:
        """State facts; they replace what was stated or learned before.

        Raises:
            ConfigError: A name is no fact, or a value does not fit it.
        """
        known = _checked(facts)
        if "model" in known:
            known["model"] = {**self._said.get("model", {}), **known["model"]}
        with self._lock:
            self._said |= known
        self._is_due = True

    def learn(self, facts: Mapping[str, Any]) -> None:
        """Fill in facts that nobody stated; a mesh that is learned later is a finer one."""
        with self._lock:
            self._learned = _filled_in(self._learned, facts)
            if "layout" in facts:
                self._mesh = dict(facts["layout"])
                self._learn_mesh()
            self._observed = facts.get("observed", self._observed)
        if not self._writes and self._annotate is not None and "observed" in facts:
            self._annotate(OBSERVED_KEY, self._observed)
        self._is_due = True

    def write_due(self) -> None:
        """Write what was kept for this call.

        Raises:
            MeshscopeError: The run's manifest is damaged.
            OSError: It cannot be written; it is tried again when more is known.
        """
        if self._is_due:
            self._is_due = False
            self._write()

    def learn_chunks(self, chunks: int) -> None:
        """Learn how many pipeline stages a rank holds, which the mesh does not tell."""
        with self._lock:
            self._chunks = chunks
            if not self._mesh:
                return
            self._learn_mesh()
        self._is_due = True

    def _learn_mesh(self) -> None:
        self._learned["layout"] = {
            **self._mesh,
            "vpp": max(self._chunks, self._mesh.get("vpp", 1)),
        }

    def _write(self) -> None:
        if self._path is None or not self._writes or self._is_given_up:
            return
        with self._lock:
            said, self._said = self._said, {}
            learned, self._learned = self._learned, {}
        try:
            self._update(said, learned)
        except BaseException:
            with self._lock:
                self._said = {**said, **self._said}
                self._learned = _filled_in(learned, self._learned)
            raise

    def _update(self, said: dict[str, Any], learned: dict[str, Any]) -> None:
        assert self._path is not None
        present = read_json(self._path / MANIFEST_NAME)
        unknown = {
            name: value
            for name, value in learned.items()
            if present.get(name) in (None, {}, []) or name in self._refinable
        }
        self._refinable = (self._refinable | (unknown.keys() & _REFINED)) - said.keys()
        if said or unknown:
            update_run_manifest(self._path, {**unknown, **said})
        taken = unknown.keys() | (learned.keys() - self._of_this.keys())
        heard = {name: value for name, value in learned.items() if name in taken}
        self._of_this = {**self._of_this, **heard, **said}
        if self._annotate is not None:
            self._annotate(JOB_KEY, self._of_this)


def _filled_in(learned: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was learned and, of what came later, what was not or is refined by it."""
    refined = {name: later[name] for name in _REFINED & later.keys()}
    return {**later, **learned, **refined}


def _checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts in the form of the manifest, without those that are None."""
    unknown = sorted(facts.keys() - _FACTS)
    if unknown:
        raise ConfigError(
            message("refused.unknown_fact", name=unknown[0]),
            where="describe",
            remedy=message("advice.choose_from", known=sorted(_FACTS)),
        )
    known = {name: value for name, value in facts.items() if value is not None}
    if "layout" in known:
        layout = known["layout"]
        if not isinstance(layout, ParallelLayout):
            layout = ParallelLayout.from_json(layout)
        known["layout"] = layout.to_json()
    if "schedule" in known:
        try:
            known["schedule"] = ScheduleKind(known["schedule"]).value
        except ValueError:
            raise ConfigError(
                message("refused.not_a_schedule", schedule=known["schedule"]),
                where="describe.schedule",
                remedy=message("advice.choose_from", known=list(ScheduleKind)),
            ) from None
    if "model" in known:
        known["model"] = _model_fields(known["model"])
    return known


def _model_fields(source: object) -> dict[str, Any]:
    """Return what a source states of the model; nothing, which is said, where it is not understood.

    A model that nobody here knows is no reason to end a training: its MFU is unknown.
    """
    try:
        return model_fields(source, "describe.model")
    except ConfigError as error:
        tell(f"MFU will be unknown: {error}")
        return {}


def software() -> dict[str, str]:
    """Return the versions of what is loaded; nothing is imported for it."""
    versions = {"python": platform.python_version(), "meshscope": __version__}
    torch = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return versions if version is None else {**versions, "torch": str(version)}
