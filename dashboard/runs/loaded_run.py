"""One run with its analysis, and what of it was drawn last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshscope.analyze import Diagnosis, Trace, load_trace
from meshscope.analyze.explain.balance import balance
from meshscope.analyze.explain.run_account import Account
from meshscope.analyze.findings.diagnosis import account_or_end, diagnosis_of
from meshscope.analyze.findings.location import ranks_named
from meshscope.analyze.output.json import communication_to_json, kernels_to_json, memory_to_json
from meshscope.analyze.output.json.balance import balance_to_json
from meshscope.analyze.output.json.placement import placement_to_json
from meshscope.analyze.output.timeline.at_instant import StepTransfers, step_transfers
from meshscope.analyze.output.timeline.slices import (
    StepSlices,
    bare_steps,
    steps_of,
    with_marks,
    worst_ranks,
)
from meshscope.analyze.output.timeline.unfinished import last_step
from meshscope.analyze.tables.results import ENDS
from meshscope.analyze.tables.unused_memory import release_unused
from meshscope.analyze.wording.limits import limit_text
from meshscope.analyze.wording.words import counted
from meshscope.probe.schema.errors import ConfigError, TraceFormatError
from meshscope.probe.schema.message import message

from ..plain.plain_json import plain_json
from ..timeline.drawn_steps import MOST_ROWS, DrawnSteps, keep_few
from ..timeline.paths import LastAccount, StepPath, step_path
from .clock import unix_ns
from .compared import ComparedRun, compared_run
from .kept_analysis import Kept
from .kept_pages import KeptPages
from .kept_path import path_from_json, path_to_json
from .mesh import rank_step_matrix
from .replays import Replays
from .run_entry import RunEntry, ready_entry
from .typical import typical_step

STANDSTILL = ENDS
"""Findings about a job that did not go on."""

RECENT_NS = 300 * 10**9
"""A run that was written to so recently may still be recorded: pages say when it was read."""
_MANY_RECORDS = 100_000
"""Records from which a comparison takes longer than a page may."""
_MOST_KERNELS = 200
"""Kernels and operators of each list, which the browser searches and pages."""


class Times(NamedTuple):
    """When a run was read and written."""

    as_of_ns: int | None = None
    """When it was read, ns since the epoch, of a run that may still be recorded; else None."""
    written_ns: int = 0
    """Newest modification of what was recorded, ns since the epoch."""
    is_gone: bool = False
    """Whether the processes of all its ranks were known to be gone before it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """One run with its analysis."""

    run_id: str
    version: int
    """Changes when the files of the run change; part of addresses that browsers keep."""
    times: Times = field(default_factory=lambda: Times(), repr=False, compare=False)
    trace: Trace
    diagnosis: Diagnosis
    steps: tuple[int, ...]
    """Steps that can be drawn, ascending."""
    bare_steps: frozenset[int] = frozenset()
    """Steps of which the length alone is known."""
    drawn: DrawnSteps = field(repr=False, compare=False)
    """What of its steps was drawn last."""
    accounts: LastAccount = field(repr=False, compare=False)
    """Shared by all runs."""
    replays: Replays = field(repr=False, compare=False)
    no_path_because: str = ""
    """Why no step has a critical path; empty if the analysed ones have one."""
    is_kept: bool = False
    """Whether its analysis was read from disk."""
    pages: KeptPages | None = field(default=None, repr=False, compare=False)
    """What its pages say, kept beside its analysis; None where nothing is kept."""
    stood_still_in: int | None = None
    """Step in which the job came to a standstill; None where it did not, or nothing tells."""
    _rows: dict[tuple[int, tuple[int, int] | None], tuple[StepSlices, StepSlices]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _transfers: dict[int, StepTransfers | None] = field(
        default_factory=dict, repr=False, compare=False
    )
    """Of one step."""
    _paths: dict[int, StepPath] = field(default_factory=dict, repr=False, compare=False)
    _kept: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _finding: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    _telling: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def step(self, step: int) -> StepSlices:
        """Return the drawable content of a step on all ranks."""
        return self.drawn.whole(step)

    def rows(self, step: int, within: tuple[int, int] | None = None) -> StepSlices:
        """Return a step in the rows that a figure has pixels for, with the ranks of findings marked.

        Args:
            step: The step.
            within: First and last of the rows of all ranks that are wanted, None for all.
        """
        outline = self.drawn.outline(step)
        found = self._rows.get((step, within))
        if found is None or found[0] is not outline:
            named = {rank for one in self.diagnosis.findings for rank in ranks_named(one.where)}
            if len(named) > len(outline.ranks) // 2:
                named = set()  # Who is everybody is nobody to look at.
            first, last = within or (0, len(outline.ranks) - 1)
            wanted = outline.ranks[first : last + 1]
            ranks = worst_ranks(wanted, MOST_ROWS, self._slowness(step), named)
            found = outline, with_marks(self.drawn.of(step, ranks), named)
            keep_few(self._rows, (step, within), found)
        return found[1]

    def transfers(self, step: int) -> StepTransfers | None:
        """Return the operations of a step, matched across ranks; of the last one asked for they are kept.

        None where the step cannot be analysed.
        """
        with self._finding:
            if step not in self._transfers:
                self._transfers.clear()
                self._transfers[step] = step_transfers(self.trace, step)
                release_unused()
            return self._transfers[step]

    def _slowness(self, step: int) -> dict[int, float]:
        """Return the time outside communication of each rank over that of its peers."""
        matrix = rank_step_matrix(self.diagnosis, "own")
        if not matrix.ranks:
            return {}
        of_step = [at for at, one in enumerate(matrix.steps) if one == step]
        with np.errstate(all="ignore"):
            values = matrix.values[:, of_step[0]] if of_step else matrix.values.max(axis=1)
        return dict(zip(matrix.ranks, values.tolist(), strict=True))

    def path_unknown_because(self, step: int) -> str:
        """Return why a step has no critical path; empty if it has one. Nothing is computed."""
        if self.no_path_because:
            return self.no_path_because
        analysed = self.diagnosis.ledger["step"]
        if (analysed == step).any():
            return ""
        return f"Step {step} is not among the analysed steps, {analysed.min()} to {analysed.max()}."

    def path(self, step: int) -> StepPath:
        """Return the critical path of a step; the last few are kept.

        Where it is not kept on disk, and another run was opened since, this one is measured again: an account
        is too large to keep for every run.

        Raises:
            StillMeasuredError: A process of its own measures it.
            MeshscopeError: There is none, see ``path_unknown_because``.
        """
        outline = self.drawn.outline(step)
        with self._finding:
            found = self._paths.get(step)
            if found is None:
                found = self._kept_path(step)
                if found is None:
                    # As it is read again: of the same types.
                    value = path_to_json(step_path(self.accounts.of(self.trace), outline))
                    found = path_from_json(value)
                    if self.pages is not None:
                        self.pages.keep(f"path-{step}", value)
                keep_few(self._paths, step, found)
        return found

    def _kept_path(self, step: int) -> StepPath | None:
        value = None if self.pages is None else self.pages.awaited(f"path-{step}", begin=False)
        if value is None:
            return None
        try:
            return path_from_json(value)
        except (LookupError, TypeError, ValueError, OverflowError):
            return None

    def kernels(self) -> dict[str, Any]:
        """Return what its devices did, as ``meshscope kernels`` has it; computed once."""
        return self._computed_once("kernels", lambda: kernels_to_json(self.trace, _MOST_KERNELS))

    def communication(self) -> dict[str, Any]:
        """Return its communication, as ``meshscope collectives`` has it but for the list; computed once."""

        def compute() -> dict[str, Any]:
            account = None if self.diagnosis.ledger.empty else self.accounts.of(self.trace)
            return communication_to_json(self.trace, account)

        return self._computed_once("communication", compute)

    def memory(self) -> dict[str, Any]:
        """Return what its stages held and should hold; computed once."""
        return self._computed_once("memory", lambda: memory_to_json(self.trace))

    def _computed_once(self, name: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what a page says, in JSON types: as it was found before, on disk, or computed now."""
        with self._telling:
            found = self._kept.get(name)
            if found is None and self.pages is not None:
                found = self.pages.awaited(name)
            if found is None:
                found = plain_json(compute())
                release_unused()
                if self.pages is not None:
                    self.pages.keep(name, found)
            self._kept[name] = found
            return found  # type: ignore[no-any-return]

    def balance(self) -> dict[str, Any]:
        """Return the best layer splits, as ``meshscope balance`` has them; computed once.

        Raises:
            MeshscopeError: The run has no pipeline, or does not show today's split.
        """
        with self._finding:
            if "balance" not in self._kept:
                try:
                    found = balance(self.accounts.of(self.trace))
                except ModuleNotFoundError as error:
                    raise ConfigError(
                        message("refused.not_installed"),
                        where=str(error.name),
                        remedy=message("advice.install_balance"),
                    ) from error
                self._kept["balance"] = balance_to_json(found)
            return self._kept["balance"]  # type: ignore[no-any-return]

    def side(self) -> ComparedRun:
        """Return what of it is compared with another run; computed once.

        Raises:
            MeshscopeError: It has no steps.
        """
        if self.diagnosis.ledger.empty:
            raise TraceFormatError(message("refused.no_step_to_compare"), where=self.run_id)
        with self._finding:
            if "side" not in self._kept:
                account = self.accounts.of(self.trace)
                self._kept["side"] = compared_run(account, self.run_id, self.diagnosis)
            return self._kept["side"]  # type: ignore[no-any-return]


def placement(run: LoadedRun) -> dict[str, Any]:
    """Return how its mesh lies on the hosts, as ``meshscope topology`` has it; computed once."""

    def compute() -> dict[str, Any]:
        is_measured = not run.diagnosis.ledger.empty
        return placement_to_json(
            run.trace, lambda trace: run.accounts.of(trace) if is_measured else None
        )

    return run._computed_once("placement", compute)


def usual_step(run: LoadedRun) -> int:
    """Return the step that stands for all; a view asks for it many times."""
    if "usual_step" not in run._kept:
        run._kept["usual_step"] = typical_step(run.diagnosis, run.steps)
    return int(run._kept["usual_step"])


def is_slow_to_compare(run: LoadedRun) -> bool:
    """Return whether a comparison has to measure a run first, which takes longer than a page may."""
    records = sum(map(run.trace.row_count, ("span", "collective", "p2p")))
    return records > _MANY_RECORDS and "side" not in run._kept


def is_running(run: LoadedRun) -> bool:
    """Return whether the job may still be recorded: written to lately, and not known to be gone."""
    times = run.times
    if times.as_of_ns is None or run.trace.frame("progress").empty:
        return False
    return unix_ns() - times.written_ns < RECENT_NS and not times.is_gone


def analysed_run(
    path: Path,
    *,
    run_id: str,
    version: int,
    times: Times | None = None,
    accounts: LastAccount,
    kept: Kept | None = None,
) -> LoadedRun:
    """Read and analyse a run.

    Args:
        path: Its file or folder.
        run_id: Its name among the runs.
        version: Number of the state of its files.
        times: When it was read and written; by default long ago.
        accounts: Where the account for its critical paths is kept.
        kept: Its analysis, where that was kept; nothing is measured then.

    Raises:
        MeshscopeError: It cannot be read.
    """
    trace = load_trace(path)
    steps = steps_of(trace)
    if kept is not None:
        diagnosis, reason = kept.diagnosis, kept.no_path_because
    else:
        diagnosis, reason = _measured(trace, accounts)
    return LoadedRun(
        run_id=run_id,
        version=version,
        times=times or Times(),
        trace=trace,
        diagnosis=diagnosis,
        steps=steps,
        bare_steps=bare_steps(trace).difference(steps),
        stood_still_in=_standstill_step(trace, diagnosis),
        drawn=DrawnSteps(trace),
        accounts=accounts,
        replays=Replays(trace, accounts),
        no_path_because=reason,
        is_kept=kept is not None,
        pages=None if kept is None else kept.pages,
    )


def _measured(trace: Trace, accounts: LastAccount) -> tuple[Diagnosis, str]:
    """Return the diagnosis of a run, and why no step has a critical path; empty if the analysed ones have one."""
    found = account_or_end(trace)
    if not isinstance(found, Account):
        return found, "The capture has no steps."
    # What is opened is looked at next.
    accounts.keep(trace, found)
    return diagnosis_of(found), limit_text(found.limits[-1]) if found.program is None else ""


def _standstill_step(trace: Trace, diagnosis: Diagnosis) -> int | None:
    found = [finding for finding in diagnosis.findings if finding.kind in STANDSTILL]
    return last_step(trace, found[0].where.get("ranks", ())) if found else None


def line_of(run: LoadedRun) -> RunEntry:
    """Return the line of the run list of a run."""
    return ready_entry(run.run_id, run.diagnosis, layout_words(run.trace), run.times.written_ns)


def layout_words(trace: Trace) -> str:
    """Return the mesh as people write it, e.g. ``TP2 PP2 DP2``."""
    layout = trace.layout
    if layout is None:
        return f"{counted(len(trace.ranks), 'rank')}, mesh not known"
    axes = [f"{axis.upper()}{getattr(layout, axis)}" for axis in ("tp", "pp", "dp")]
    axes += [
        f"{axis.upper()}{getattr(layout, axis)}"
        for axis in ("cp", "ep", "vpp")
        if getattr(layout, axis) > 1
    ]
    return " ".join(axes)
