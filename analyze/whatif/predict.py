"""The step time that a set of changes would give, with its error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshscope.probe.schema.errors import MeshscopeError

from ..account import Account
from ..program import Program
from ..replay import FloatArray
from ..scenarios import replay_scenarios, step_lengths
from .changes import Change
from .redesign import REDESIGNS, Redesign, redesign
from .repairs import repair_effect

Z_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The step as it was, and as it would be."""

    measured_ns: float
    predicted_ns: float
    error_ns: float | None
    """Half width of a 95 % interval of the prediction; None where one step tells no spread."""
    error_parts: dict[str, float]
    """What the error consists of, ns: spread between steps, simulation of the schedule."""
    microbatches: tuple[int, int] | None
    """Before and after, where the program itself changes."""
    assumptions: tuple[str, ...]

    @property
    def gain_frac(self) -> float:
        """Return the share of the measured step that is gained; negative where it gets longer."""
        return 1.0 - self.predicted_ns / self.measured_ns


def predict(account: Account, changes: list[Change]) -> Prediction:
    """Return what the changes together would make of the step time.

    Repairs and speed-ups are replayed on the recorded program. Changes of the program
    scale the result by the ratio of two simulated steps.

    Raises:
        MeshscopeError: The run cannot be replayed.
        ConfigError: A change does not fit the run.
    """
    measured = account.windows.step_time_ns
    kept = [change for change in changes if change.name not in REDESIGNS]
    new = [change for change in changes if change.name in REDESIGNS]
    predicted, parts = measured, {}
    assumptions: list[str] = []
    if kept:
        predicted, parts["steps_ns"] = _repaired(account, kept)
        if any(change.name.startswith("link.") for change in kept):
            assumptions.append("a faster link shortens transfers in proportion, latency included")
    changed: Redesign | None = (
        redesign(account, new, _repaired_ranks(account, kept)) if new else None
    )
    if changed is not None:
        missed = abs(changed.before_ns / predicted - 1.0)
        predicted *= changed.after_ns / changed.before_ns
        parts["simulation_ns"] = missed * predicted
        assumptions += changed.assumptions
    unknown = any(np.isnan(part) for part in parts.values())
    return Prediction(
        measured_ns=measured,
        predicted_ns=predicted,
        error_ns=None if unknown else float(np.hypot(*_two(list(parts.values())))),
        error_parts={name: part for name, part in parts.items() if not np.isnan(part)},
        microbatches=None if changed is None else changed.microbatches,
        assumptions=tuple(assumptions),
    )


def _repaired_ranks(account: Account, changes: list[Change]) -> set[int]:
    """Return the slow ranks that the changes repair."""
    suspects = account.slow_ranks()
    if any(change.is_fix and change.name == "stragglers" for change in changes):
        return set(suspects)
    named = {change.whole() for change in changes if change.is_fix and change.name == "rank"}
    hosts = {change.value for change in changes if change.is_fix and change.name == "host"}
    clocks = account.trace.clocks
    return named | {rank for rank in suspects if clocks.get(rank) in hosts}


def _repaired(account: Account, changes: list[Change]) -> tuple[float, float]:
    """Return the replayed step time with the changes, and the half width of its interval, ns."""
    program = account.program
    if program is None:
        raise MeshscopeError(
            "no prediction: nothing tells who waited for whom",
            where=str(account.trace.path),
            remedy="; ".join(account.limits[-1:]),
        )
    effect = repair_effect(account, program, changes)[:, None]
    times, _ = replay_scenarios(program, effect, np.zeros((1, 1)))
    return float(times[0]), _spread(program, effect)


def _spread(program: Program, effect: FloatArray) -> float:
    """Return the half width of the 95 % interval of the mean gain over steps; NaN for one step."""
    lengths = step_lengths(program, effect, np.array([[0.0, 1.0]]))
    gain = lengths[:, 1] - lengths[:, 0]
    if len(gain) < 2:
        return float("nan")
    return float(Z_95 * gain.std(ddof=1) / np.sqrt(len(gain)))


def _two(parts: list[float]) -> tuple[float, float]:
    first, second = (*parts, 0.0, 0.0)[:2]
    return first, second
