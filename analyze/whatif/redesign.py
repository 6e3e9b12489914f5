"""Changes of the program itself: schedule, microbatches, layers per stage.

The recorded program cannot be replayed with other passes. The step is simulated from
the costs of its passes, once as it is and once as it would be; the ratio of the two is
what the change is worth, and how far the first misses the recorded step is the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import ScheduleKind

from ..account import Account
from ..bubble import microbatches_of, schedule_of
from ..ledger import COMPUTE_CLASSES
from ..replay import FloatArray
from ..schedules import PassCosts, make_plan, schedule_graph
from .changes import Change

REDESIGNS = ("microbatches", "schedule", "chunks", "layers")
_PASSES = ("forward", "backward", "recompute", "exposed_tp_wire", "exposed_cp_wire")
_SPLIT = (ScheduleKind.ZB_H1, ScheduleKind.ZB_V)


@dataclass(frozen=True, slots=True, kw_only=True)
class Redesign:
    """The simulated step before and after."""

    before_ns: float
    after_ns: float
    microbatches: tuple[int, int]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipeline:
    """Costs of one step: forward and backward per microbatch by stage, p2p, tail."""

    schedule: ScheduleKind
    chunks: int
    microbatches: int
    forward_ns: FloatArray
    backward_ns: FloatArray
    p2p_ns: float
    tail_ns: FloatArray

    def step_ns(self) -> float:
        """Return the simulated length of a step.

        Raises:
            ConfigError: The schedule does not fit the sizes.
        """
        ranks = len(self.forward_ns)
        plan = make_plan(self.schedule, ranks, self.microbatches, self.chunks)
        stage = np.arange(ranks * self.chunks)
        # Which rank holds a stage: round by round, or there and back again in a V.
        holder = stage % ranks
        if self.schedule is ScheduleKind.ZB_V:
            holder = np.where(stage < ranks, stage, 2 * ranks - 1 - stage)
        forward = self.forward_ns[holder] / self.chunks
        backward = self.backward_ns[holder] / self.chunks
        costs = PassCosts(
            forward_ns=_whole(forward),
            backward_input_ns=_whole(backward / 2),
            backward_weight_ns=_whole(backward - backward / 2),
        )
        graph = schedule_graph(plan)
        p2p = round(self.p2p_ns)
        times = graph.times(costs.of_passes(plan), p2p, _whole(self.tail_ns))
        return float(times.makespan_ns[0])


def redesign(account: Account, changes: list[Change], repaired: set[int]) -> Redesign:
    """Return the step before and after changes of the program.

    Args:
        account: The measured run.
        changes: What to change.
        repaired: Slow ranks that do not count, because they are repaired.

    Raises:
        ConfigError: The pipeline of the run is not known well enough, or a change does not fit.
    """
    before = _recorded_pipeline(account, repaired)
    after, assumptions = _changed(account, before, {change.name: change for change in changes})
    return Redesign(
        before_ns=before.step_ns(),
        after_ns=after.step_ns(),
        microbatches=(before.microbatches, after.microbatches),
        assumptions=tuple(assumptions),
    )


def _recorded_pipeline(account: Account, repaired: set[int]) -> _Pipeline:
    layout, schedule = account.trace.layout, schedule_of(account.trace)
    microbatches = microbatches_of(account.trace)
    if layout is None or microbatches is None:
        missing = "layout" if layout is None else "number of microbatches"
        raise ConfigError(
            f"the {missing} of this run is not known",
            where=str(account.trace.path),
            remedy="State it with --topology FILE, or capture with the probe",
        )
    by_stage = _by_stage(account, repaired)
    if schedule is None and layout.pp > 1:
        raise ConfigError(
            "the pipeline schedule of this run is not known",
            where=str(account.trace.path),
            remedy="Give the schedule to meshscope.probe.attach(), or use --fix alone",
        )
    frame = account.events.frame
    wires = frame.loc[frame["is_p2p"] & ~frame["is_send"], "wire_ns"].dropna()
    return _Pipeline(
        schedule=ScheduleKind(schedule or ScheduleKind.GPIPE),
        chunks=layout.vpp,
        microbatches=microbatches,
        forward_ns=by_stage["forward"] / microbatches,
        backward_ns=by_stage["backward"] / microbatches,
        p2p_ns=float(wires.median()) if len(wires) else 0.0,
        tail_ns=by_stage["tail"],
    )


def _by_stage(account: Account, repaired: set[int]) -> dict[str, FloatArray]:
    """Return the time of a step by stage: forward, backward, tail.

    A stage is as slow as a slow rank in it; without one it is as the median of its ranks.
    """
    by_step = account.ledger.by_step
    healthy = by_step[~by_step["rank"].isin(repaired)]
    if {account.stage[rank] for rank in healthy["rank"]} == set(account.stage.values()):
        by_step = healthy
    slow = sorted(set(account.slow_ranks()) - repaired)
    per_rank = by_step.drop(columns="step").groupby("rank").mean()
    stage = per_rank.index.map(account.stage)
    backward = per_rank[["backward", "recompute"]].sum(axis=1)
    compute = per_rank["forward"] + backward
    # Transfers inside the passes lengthen both directions alike.
    inside = per_rank[["exposed_tp_wire", "exposed_cp_wire", "exposed_ep_wire"]].sum(axis=1)
    stretch = 1.0 + inside / compute.where(compute > 0)
    other = [name for name in COMPUTE_CLASSES if name not in ("forward", "backward", "recompute")]
    tail = per_rank[[*other, "exposed_dp_wire", "exposed_other_wire"]].sum(axis=1)
    stalls = ["data_load", "gc", "checkpoint", "offload", "host_blocked", "other", "unattributed"]
    table = {
        "forward": per_rank["forward"] * stretch,
        "backward": backward * stretch,
        "tail": tail + per_rank[stalls].sum(axis=1),
    }
    counts = ~per_rank.index.isin(slow)
    found = {}
    for name, values in table.items():
        usual = values[counts].groupby(stage[counts]).median()
        worst = values[~counts].groupby(stage[~counts]).max()
        found[name] = worst.combine_first(usual).sort_index().to_numpy()
    if np.isnan(found["forward"]).any() or not (found["forward"] > 0).all():
        raise ConfigError(
            "forward and backward are not told apart in this capture",
            where=str(account.trace.path),
            remedy="Capture with the probe at level stages or above",
        )
    return found


def _changed(
    account: Account, before: _Pipeline, changes: dict[str, Change]
) -> tuple[_Pipeline, list[str]]:
    assumptions = []
    schedule = changes["schedule"].schedule() if "schedule" in changes else before.schedule
    chunks = changes["chunks"].whole() if "chunks" in changes else before.chunks
    if schedule is ScheduleKind.ZB_V:
        chunks = 2
    elif schedule is not ScheduleKind.INTERLEAVED:
        chunks = 1
    microbatches = before.microbatches
    if "microbatches" in changes:
        microbatches = changes["microbatches"].whole()
        assumptions.append(
            "microbatches keep their size: the step trains on "
            f"{microbatches / before.microbatches:.2f} x as many tokens"
        )
    if schedule in _SPLIT and before.schedule not in _SPLIT:
        assumptions.append("half of a backward pass is for the weights")
    forward, backward = before.forward_ns, before.backward_ns
    if "layers" in changes:
        scale, said = _layer_scale(account, before, changes["layers"])
        forward, backward = forward * scale, backward * scale
        assumptions.append(said)
    after = _Pipeline(
        schedule=schedule,
        chunks=chunks,
        microbatches=microbatches,
        forward_ns=forward,
        backward_ns=backward,
        p2p_ns=before.p2p_ns,
        tail_ns=before.tail_ns,
    )
    return after, assumptions


def _layer_scale(account: Account, before: _Pipeline, change: Change) -> tuple[FloatArray, str]:
    """Return by how much the passes of each stage get longer with other layers.

    A layer costs what it costs on the lightest stage per layer; what a stage takes
    beyond its layers (embedding, output head) stays with it.
    """
    wanted = np.array(change.layers(), dtype=np.float64)
    stages = len(before.forward_ns)
    total = account.trace.run.get("num_layers")
    if len(wanted) != stages or (total is not None and wanted.sum() != total):
        of_model = f"{total} layers over " if total is not None else ""
        raise ConfigError(
            f"layers={change.value} does not fit the run",
            where="--set",
            remedy=f"Give {of_model}{stages} stages",
        )
    now = np.full(stages, wanted.sum() / stages)
    cost = before.forward_ns + before.backward_ns
    layer = float((cost / now).min())
    said = "the run has equal layers on every stage; what a stage takes beyond them stays with it"
    return np.asarray((cost + (wanted - now) * layer) / cost), said


def _whole(values: FloatArray) -> np.ndarray:
    return np.rint(values).astype(np.int64)
