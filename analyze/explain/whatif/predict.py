"""The step time that a set of changes would give, with its error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from meshscope.probe.schema.errors import MeshscopeError

from ...align.steps.cycles import cycles
from ...tables.arrays import FloatArray
from ...wording.limits import Limit, limit_text
from ...wording.message import Message, message
from ..replay.program import Program
from ..replay.scenarios import replay_scenarios, step_lengths
from ..run_account import Account
from .changes import Change
from .layers import STAGE_REPAIRS
from .redesign import REDESIGNS, redesign
from .repaired_times import RepairedTimes
from .repairs import Repair, check_places, repair_effect

LEAST_MISS = 0.005
"""Least error of a simulated schedule, as a share of the step: simulated jobs that differ in
nothing but chance, with steps too alike to show it, were predicted within it."""

TOLD_MISS = 0.02
"""From this share of the step on it is said that the replay misses the recorded step."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The step as it was, and as it would be."""

    measured_ns: float
    predicted_ns: float
    error_ns: float | None
    """How far the gain may be off by chance; None where that is not known."""
    error_unknown: Limit | None
    """Why not."""
    error_parts: dict[str, float]
    """What the error consists of, ns. ``steps_ns``: half width of the 95 % interval of the mean
    gain over the steps. ``simulation_ns``: how far the simulation of the present schedule is
    from the recorded step. ``transfers_ns``: by the interval of the fixed time of transfers. What is assumed can be wrong by more."""
    microbatches: tuple[int, int] | None
    """Before and after, where the program itself changes."""
    assumptions: tuple[Message, ...]

    @property
    def gain_frac(self) -> float:
        """Return the share of the measured step that is gained; negative where it gets longer."""
        return 1.0 - self.predicted_ns / self.measured_ns


def predict(account: Account, changes: list[Change]) -> Prediction:
    """Return what the changes together would make of the step time.

    Repairs and speed-ups are replayed on the recorded program. Changes of the program
    scale the result by the ratio of two simulated steps of the repaired run. Stages whose
    layers are set too are repaired there: how many layers each has is needed for it.

    Raises:
        MeshscopeError: The run cannot be replayed.
        ConfigError: A change does not fit the run.
    """
    new = [change for change in changes if change.name in REDESIGNS]
    moves_layers = any(change.name == "layers" for change in new)
    of_stages = [c for c in changes if moves_layers and c.is_fix and c.name in STAGE_REPAIRS]
    check_places(account, of_stages)
    kept = [change for change in changes if change not in (*new, *of_stages)]
    repaired = (
        _repaired(account, kept, with_times=bool(new)) if kept else _Repaired.as_recorded(account)
    )
    predicted, parts = repaired.step_ns, {}
    if kept:
        parts["steps_ns"] = repaired.spread_ns
        if repaired.transfers_ns is not None:
            parts["transfers_ns"] = repaired.transfers_ns
    assumptions = list(repaired.assumptions)
    changed = redesign(account, new, repaired.times, of_stages) if new else None
    if changed is not None:
        missed = max(abs(changed.before.mean_ns / predicted - 1.0), LEAST_MISS)
        own = half_width(changed.gain_by_step) * predicted
        predicted *= changed.ratio
        parts["steps_ns"] = float(np.hypot(repaired.spread_ns * changed.ratio, own))
        parts["simulation_ns"] = missed * predicted
        assumptions += changed.assumptions
    unknown = _unknown_error(account, parts)
    return Prediction(
        measured_ns=account.windows.step_time_ns,
        predicted_ns=predicted,
        error_ns=None if unknown else float(np.linalg.norm(list(parts.values()))),
        error_unknown=unknown,
        error_parts={name: part for name, part in parts.items() if not np.isnan(part)},
        microbatches=None if changed is None else changed.microbatches,
        assumptions=tuple(assumptions),
    )


def repaired_times(account: Account, changes: list[Change]) -> RepairedTimes | None:
    """Return when everything recorded would have happened after repairs and speed-ups.

    None where a change is one of the program itself, whose passes are simulated and not those
    recorded, or where the run cannot be replayed.

    Raises:
        ConfigError: A change does not fit the run.
    """
    program = account.program
    if program is None or any(change.name in REDESIGNS for change in changes):
        return None
    return RepairedTimes(program, account.ledger, repair_effect(account, program, changes))


def _unknown_error(account: Account, parts: dict[str, float]) -> Limit | None:
    """Return why nothing tells how far a prediction may be off; None where something does."""
    if account.unknown_causes:
        return account.unknown_causes[0]
    return message("whatif.one_step") if np.isnan(list(parts.values())).any() else None


class _Repaired(NamedTuple):
    """The run with what keeps its program: repairs and speed-ups."""

    step_ns: float
    spread_ns: float
    """Half width of the interval of the mean gain over the steps; NaN for one step."""
    times: RepairedTimes | None
    assumptions: tuple[Message, ...] = ()
    transfers_ns: float | None = None
    """How far the step may be off by the fixed time of transfers; None where nothing depends on it."""

    @classmethod
    def as_recorded(cls, account: Account) -> _Repaired:
        """Return the run without any."""
        return cls(account.windows.step_time_ns, 0.0, None)


def _repaired(account: Account, changes: list[Change], *, with_times: bool) -> _Repaired:
    program = account.program
    if program is None:
        raise MeshscopeError(
            message("refused.no_prediction"),
            where=str(account.trace.path),
            remedy="; ".join(map(limit_text, account.limits[-1:])),
        )
    repair = repair_effect(account, program, changes)
    lane = repair.taken_ns[:, None]
    times, _ = replay_scenarios(program, lane, np.array([[0.0, 1.0]]))
    # Against the replay of the run as it is: what that does not reproduce is no effect of a repair.
    changed, unchanged = times.tolist()
    measured = account.windows.step_time_ns
    return _Repaired(
        measured * changed / unchanged,
        _spread(program, lane),
        RepairedTimes(program, account.ledger, repair) if with_times else None,
        (*repair.notes, *_missed(unchanged, measured)),
        _transfer_error(program, repair, changed) * measured / unchanged
        if repair.bounds_ns
        else None,
    )


def _transfer_error(program: Program, repair: Repair, usual_ns: float) -> float:
    """Return how far the replays with the bounds of the fixed times are from the usual one, at most."""
    lanes = [
        replay_scenarios(program, taken[:, None], np.zeros((1, 1)))[0][0]
        for taken in repair.bounds_ns
    ]
    return float(max(abs(lane - usual_ns) for lane in lanes))


def _missed(replayed_ns: float, measured_ns: float) -> Iterator[Message]:
    """Say that the replay of the run as it is does not take as long as the run did."""
    missed = replayed_ns / measured_ns - 1.0
    if abs(missed) >= TOLD_MISS:
        if missed > 0:
            yield message("whatif.replay_longer", missed=missed)
        else:
            yield message("whatif.replay_shorter", missed=-missed)


def _spread(program: Program, effect: FloatArray) -> float:
    """Return the half width of the interval of the mean gain over steps; NaN for one step.

    Where ranks communicate in some steps only, whole cycles of them are the independent ones.
    """
    lengths = step_lengths(program, effect, np.array([[0.0, 1.0]]))
    gain = lengths[:, 1] - lengths[:, 0]
    if program.windows.chained:
        cycle = cycles(program.windows.steps, program.communicating_steps)
        gain = np.bincount(cycle, gain) / np.bincount(cycle)
    return half_width(gain)


def half_width(gain: FloatArray) -> float:
    """Return the half width of the 95 % interval of a mean gain over steps; NaN for one step.

    Steps are taken as independent, and their gains as normal (Student's t).
    """
    if len(gain) < 2:
        return float("nan")
    return float(t_95(len(gain) - 1) * gain.std(ddof=1) / np.sqrt(len(gain)))


def t_95(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Exact for one and two degrees of freedom, else the expansion in 1/freedom of Abramowitz and
    Stegun 26.7.5, which is within 1 % from 3 on.
    """
    z = 1.959964
    if freedom < 3:
        return {1: 12.7062, 2: 4.30265}[freedom]
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / freedom**power for power, term in enumerate(terms)))
