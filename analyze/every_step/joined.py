"""The account of every step of a run: windows of steps that workers account for, joined to one.

A mean over windows weighs each by its steps. So the classes of the ledger add up to the mean step of the run as they do in
each window, and what a cause costs in some windows only is spread over all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from meshscope.probe.schema.manifest import DIRECTORY_MODE

from ..scale.blocks import Blocks
from ..scale.executors import Executor
from ..scale.store import Summaries
from ..tables.part import StepRange
from ..tables.source_code import ANALYSING, code_version
from .window import FOLDER, Part, Window, WindowAccount, account_of

WINDOW_ROWS = 2_000_000
"""Records of a window: its account takes about 2 GB."""


_OF_WINDOWS = "scope.chosen_steps"
"""Said of every window, and not true of the run."""


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """One class, cause or finding over all steps; times are means per step of the run, ns."""

    kind: str
    where: Mapping[str, Any]
    cost_ns: float | None
    """None where it is not known in any window."""
    gain_ns: float | None
    steps: tuple[tuple[int, int], ...]
    """The windows that have it, joined where they follow each other."""
    dearest: StepRange
    """The window in which it costs most."""
    dearest_ns: float | None
    """What it costs there, per step."""
    place: tuple[int, bool]
    """Of a finding: the highest of its severities, and whether it tells how the job is made."""
    claim: Mapping[str, Any] | None
    """What was found there, as ``message_to_json`` gives it."""


class WindowSteps(NamedTuple):
    """A window of steps, and how many records all ranks have in it."""

    steps: StepRange
    rows: int


class EveryStep(msgspec.Struct, frozen=True, kw_only=True):
    """The account of all steps of a run."""

    run: Path
    ranks: int
    first: int
    last: int
    steps: int
    """Analysed steps."""
    windows: tuple[WindowAccount, ...]
    step_ns: float
    """Their mean length."""
    classes: tuple[Joined, ...]
    """They add up to the mean window of ranks."""
    causes: tuple[Joined, ...]
    """Most costly first."""
    findings: tuple[Joined, ...]
    mfu: float | None
    """None where some window does not know it."""
    mfu_unknown: Mapping[str, Any] | None
    """Why it is not known, in the first window that says so."""
    limits: tuple[Mapping[str, Any], ...]
    """Of any window, each once."""

    @property
    def failed(self) -> tuple[WindowAccount, ...]:
        """Return the windows that could not be analysed."""
        return tuple(one for one in self.windows if one.failed)

    @property
    def without_causes(self) -> tuple[WindowAccount, ...]:
        """Return the windows of which no causes are known."""
        return tuple(one for one in self.windows if one.unknown_causes)


def windows_of(
    blocks: Blocks, most_rows: int, workers: int = 1, within: StepRange | None = None
) -> tuple[WindowSteps, ...]:
    """Return windows of steps that follow each other, with about as many records each.

    Args:
        blocks: The steps of the run.
        most_rows: Records that a window may have; one step is the least.
        workers: At least as many windows, where there are as many steps.
        within: Only these steps; all if not given.
    """
    table = blocks.steps
    steps, rows = table["step"].to_numpy(), table["records"].to_numpy().astype(np.float64)
    # Steps whose records were removed are in summaries alone.
    wanted = rows > 0
    if within is not None:
        wanted &= (steps >= within.first) & (steps <= within.last)
    steps, rows = steps[wanted], rows[wanted]
    if not len(steps):
        return ()
    before = np.cumsum(rows) - rows
    most = max(min(float(most_rows), math.ceil(rows.sum() / workers)), 1.0)
    count = math.ceil(rows.sum() / most)
    window = np.minimum(((before + rows / 2) * count / max(rows.sum(), 1.0)).astype(int), count - 1)
    begin = np.flatnonzero(np.diff(window, prepend=-1))
    end = np.append(begin[1:], len(steps)) - 1
    return tuple(
        WindowSteps(
            StepRange(int(steps[first]), int(steps[last])), int(rows[first : last + 1].sum())
        )
        for first, last in zip(begin.tolist(), end.tolist(), strict=True)
    )


def account_of_every_step(
    made: Summaries,
    windows: Sequence[WindowSteps],
    executor: Executor,
    on_done: Callable[[int], None],
    topology: Path | None = None,
) -> EveryStep:
    """Return the account of some windows of a run, joined.

    What was made before is taken, so that an interrupted call goes on where it was.

    Args:
        made: The summaries of the run; accounts are kept beside them.
        windows: The steps.
        executor: Where the work is done, a window at a time.
        on_done: Is told how many more windows are done.
        topology: A topology file that is applied.

    Raises:
        LostWorkError: Workers died again and again.
        OSError: An account cannot be written.
    """
    folder = made.folder / FOLDER
    folder.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    source = " ".join([code_version(ANALYSING), *sorted(one.name for one in made.segments)])
    tasks = [
        Window(
            run=made.run.resolve(),
            folder=folder,
            steps=steps,
            rows=rows,
            source=source,
            topology=None if topology is None else topology.resolve(),
        )
        for steps, rows in windows
    ]
    found = tuple(executor.map(account_of, tasks, on_done))
    # Those of other steps stay: a question about a few does not cost the answer about all.
    current = {task.file.suffixes[-2] for task in tasks}
    for file in folder.glob("*.*.json"):
        if file.suffixes[-2] not in current:
            file.unlink(missing_ok=True)
    return joined(made.run, len(made.ranks), found)


def joined(run: Path, ranks: int, windows: Sequence[WindowAccount]) -> EveryStep:
    """Return the account of all steps of some windows.

    Args:
        run: The run directory.
        ranks: How many it holds.
        windows: One at least, by their steps.
    """
    steps = sum(one.steps for one in windows)
    weight = {one.first: one.steps / max(steps, 1) for one in windows}
    length = sum(one.step_ns * weight[one.first] for one in windows)
    known = [one for one in windows if one.steps]
    times = [one.step_ns * one.steps for one in known]
    uses = [one.mfu for one in known if one.mfu is not None]
    is_used = bool(known) and len(uses) == len(known)
    return EveryStep(
        run=run,
        ranks=ranks,
        first=windows[0].first,
        last=windows[-1].last,
        steps=steps,
        windows=tuple(windows),
        step_ns=length,
        classes=_joined([(one, one.classes) for one in windows], weight, by_cost=False),
        causes=_joined([(one, one.causes) for one in windows], weight),
        findings=_joined([(one, one.findings) for one in windows], weight),
        mfu=float(np.average(uses, weights=times)) if is_used else None,
        mfu_unknown=next((one.mfu_unknown for one in known if one.mfu_unknown), None),
        limits=_each_once(said for one in windows for said in one.limits),
    )


def _joined(
    parts: Sequence[tuple[WindowAccount, tuple[Part, ...]]],
    weight: Mapping[int, float],
    *,
    by_cost: bool = True,
) -> tuple[Joined, ...]:
    """Return what is about the same thing in some windows as one, the most costly first if asked for."""
    found: dict[tuple[str, str], list[tuple[WindowAccount, Part]]] = {}
    for window, own in parts:
        for part in own:
            found.setdefault((part.kind, part.key), []).append((window, part))
    made = [_one(same, weight) for same in found.values()]
    return tuple(sorted(made, key=_order) if by_cost else made)


def _order(one: Joined) -> tuple[int, bool, float]:
    """Return what findings and causes are sorted by: as those of one window are, the cost that of all steps."""
    return (*one.place, -max(one.cost_ns or 0.0, one.gain_ns or 0.0))


def _one(same: Sequence[tuple[WindowAccount, Part]], weight: Mapping[int, float]) -> Joined:
    costs = [part.cost_ns for _, part in same]
    gains = [part.gain_ns for _, part in same]
    shares = [weight[window.first] for window, _ in same]
    window, part = max(same, key=lambda pair: pair[1].cost_ns or 0.0)
    return Joined(
        kind=part.kind,
        where={key: value for key, value in part.where.items() if key != "steps"},
        cost_ns=_mean(costs, shares),
        gain_ns=_mean(gains, shares),
        steps=_runs([one for one, _ in same], list(weight)),
        dearest=StepRange(window.first, window.last),
        dearest_ns=part.cost_ns,
        place=min(part.place for _, part in same),
        claim=part.claim,
    )


def _mean(values: Sequence[float | None], shares: Sequence[float]) -> float | None:
    """Return the mean over all steps; a window that does not know it counts as nothing, unless none knows it."""
    if all(value is None for value in values):
        return None
    return sum((value or 0.0) * share for value, share in zip(values, shares, strict=True))


def _runs(windows: Iterable[WindowAccount], order: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the steps of some windows, joined where no other window lies between them."""
    place = {first: at for at, first in enumerate(order)}
    runs: list[tuple[int, int, int]] = []
    for one in {window.first: window for window in windows}.values():
        at = place[one.first]
        if runs and runs[-1][2] == at - 1:
            runs[-1] = (runs[-1][0], one.last, at)
        else:
            runs.append((one.first, one.last, at))
    return tuple((first, last) for first, last, _ in runs)


def _each_once(texts: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return messages, each once by its code: windows differ in their numbers only."""
    found = {said["code"]: said for said in texts if said["code"] != _OF_WINDOWS}
    return tuple(found.values())
