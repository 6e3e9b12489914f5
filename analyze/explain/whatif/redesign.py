"""Changes of the program itself: schedule, microbatches, layers per stage.

The recorded program cannot be replayed with other passes. The job is simulated from
what its passes took, once as it is and once as it would be; the ratio of the two is
what the change is worth. Repairs of the same call come first: the passes are then
those of the repaired run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis, ScheduleKind

from ...account.bubble import schedule_of
from ...formulas.schedules import CHUNKED, SCHEDULES, SPLIT_BACKWARD, stage_of
from ...formulas.schedules.schedule_records import OVERLAPPING
from ...tables.arrays import FloatArray, IntArray
from ...tables.trace import Trace
from ...wording.message import Message, message
from ..run_account import Account
from .changes import Change
from .layers import StageRepair, layer_cost, moved_costs, stage_costs
from .pipeline import MOST_PASSES, Pipeline, SimulatedSteps
from .recorded_passes import recorded_passes
from .repaired_times import RepairedTimes

REDESIGNS = ("microbatches", "schedule", "chunks", "layers")


class PresentPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The pipeline of a run, for changes of its layers alone."""

    pipeline: Pipeline
    centre_ns: FloatArray
    """The usual pass of every stage, ``(kind, stage)``."""
    holders: IntArray
    """The pipeline rank of every stage."""

    def with_layers(
        self,
        now: Sequence[float] | FloatArray,
        then: Sequence[float] | FloatArray,
        grown: float = 0.0,
    ) -> Pipeline:
        """Return the pipeline with other layers, as ``--set layers=NOW->THEN`` has it.

        Args:
            now: Present layers of the stages; layers of other kinds by what they cost.
            then: Those wanted.
            grown: Share by which the work of moved layers differs from their measured one: added
                layers cost more, removed ones leave as much behind.
        """
        present, wanted = (np.array(layers, np.float64) for layers in (now, then))
        costs = moved_costs(self.centre_ns, present, wanted)
        if grown:
            # What was measured stays: only layers that come or go are extrapolated.
            each = layer_cost(self.centre_ns, present)[:, None]
            stage = np.where(wanted > present, wanted, wanted - present)
            costs = costs + grown * each * np.where(wanted == present, 0.0, np.abs(stage))
        pass_ns = _with_costs(self.pipeline, costs, self.pipeline.schedule, self.pipeline.chunks)
        return replace(self.pipeline, pass_ns=pass_ns)


def present_pipeline(account: Account) -> PresentPipeline:
    """Return the pipeline of a run.

    Raises:
        ConfigError: It is not known well enough, or the run has one stage.
    """
    layout = _layout(account.trace)
    if layout.pp == 1:
        raise ConfigError(
            message("refused.balance_of_one_stage"),
            where=str(account.trace.path),
            remedy=message("advice.plan"),
        )
    schedule = _schedule(account, layout)
    pipeline, _ = _recorded_pipeline(account, layout, schedule, None)
    return PresentPipeline(
        pipeline=pipeline,
        centre_ns=_centre(pipeline.pass_ns),
        holders=_holders(schedule, layout.pp, layout.vpp),
    )


class Redesign(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated steps before and after."""

    before: SimulatedSteps
    after: SimulatedSteps
    microbatches: tuple[int, int]
    assumptions: tuple[Message, ...]

    @property
    def ratio(self) -> float:
        """Return the step after over the step before."""
        return self.after.mean_ns / self.before.mean_ns

    @property
    def gain_by_step(self) -> FloatArray:
        """Return by how much each step is shorter than the mean ratio makes it, as a share of a step."""
        before = self.before.length_ns
        return np.asarray((self.ratio * before - self.after.length_ns) / before.mean())


def redesign(
    account: Account,
    changes: list[Change],
    times: RepairedTimes | None,
    of_stages: list[Change] | None = None,
) -> Redesign:
    """Return the step before and after changes of the program.

    Args:
        account: The measured run.
        changes: What to change.
        times: The run after the repairs of the same call; None without any.
        of_stages: Repairs of stages, where layers are set too: they are not in the times.

    Raises:
        ConfigError: The pipeline of the run is not known well enough, or a change does not fit.
    """
    layout = _layout(account.trace)
    schedule = _schedule(account, layout)
    wanted = {change.name: change for change in changes}
    kind, chunks = _shape(layout, schedule, wanted, account.trace.run.get("num_layers"))
    if "microbatches" in wanted:
        _check_size(wanted["microbatches"], layout.pp * chunks)
    before, is_split = _recorded_pipeline(account, layout, schedule, times)
    microbatches, assumptions = before.microbatches, list[Message]()
    if "microbatches" in wanted:
        microbatches = wanted["microbatches"].whole()
        more = microbatches / before.microbatches
        assumptions.append(message("whatif.size_of_microbatches", more=more))
    if kind in SPLIT_BACKWARD and not is_split:
        assumptions.append(message("whatif.half_of_backward"))
    if OVERLAPPING & {kind, schedule}:
        assumptions.append(message("whatif.dualpipe_pairs"))
    costs, said = stage_costs(
        _centre(before.pass_ns),
        chunks * layout.pp,
        wanted.get("layers"),
        account.trace.run.get("num_layers"),
        StageRepair(tuple(of_stages), _holders(schedule, layout.pp, layout.vpp))
        if of_stages
        else None,
    )
    after = replace(
        before,
        schedule=kind,
        chunks=chunks,
        microbatches=microbatches,
        pass_ns=_with_costs(before, costs, kind, chunks),
    )
    steps = min(before.affordable_steps(), after.affordable_steps())
    return Redesign(
        before=before.simulated(steps),
        after=after.simulated(steps),
        microbatches=(before.microbatches, microbatches),
        assumptions=(*assumptions, *said),
    )


def _layout(trace: Trace) -> ParallelLayout:
    if trace.layout is None:
        raise ConfigError(
            message("refused.no_layout"),
            where=str(trace.path),
            remedy=message("advice.state_layout"),
        )
    return trace.layout


def _schedule(account: Account, layout: ParallelLayout) -> ScheduleKind:
    found = schedule_of(account.trace)
    if layout.pp == 1:
        return ScheduleKind.NONE
    if found in SCHEDULES and SCHEDULES[ScheduleKind(found)].has_order(layout.vpp):
        return ScheduleKind(found)
    raise ConfigError(
        message("refused.schedule_of_run", schedule=found, chunks=layout.vpp)
        if found
        else message("refused.no_schedule"),
        where=str(account.trace.path),
        remedy=message("advice.replayed_changes") if found else message("advice.state_schedule"),
    )


def _shape(
    layout: ParallelLayout, now: ScheduleKind, wanted: dict[str, Change], layers: object
) -> tuple[ScheduleKind, int]:
    """Return the schedule and its chunks per rank.

    Raises:
        ConfigError: They do not fit each other or the model.
    """
    if layout.pp == 1:
        for name in {"schedule", "chunks", "layers"} & wanted.keys():
            raise ConfigError(
                message("refused.setting_of_one_stage", name=name),
                where="--set",
                remedy=message("advice.set_without_pipeline"),
            )
    kind = wanted["schedule"].schedule() if "schedule" in wanted else now
    stated = wanted["chunks"].whole() if "chunks" in wanted else None
    chunks = stated or (layout.vpp if kind in CHUNKED else 1)
    own = SCHEDULES.get(kind)
    if own is not None and own.is_v_shaped:
        chunks = stated or own.chunks
    if not (own.fits_chunks(chunks) if own is not None else chunks == 1):
        needs = own.chunks_text if own is not None else "one chunk"
        raise ConfigError(
            message("refused.chunks_of_schedule", schedule=kind, needs=needs, chunks=chunks),
            where="--set chunks" if stated else "--set schedule",
            remedy=message("advice.chunks"),
        )
    if isinstance(layers, int) and chunks > 1 and chunks * layout.pp > layers:
        raise ConfigError(
            message("refused.more_stages", chunks=chunks, ranks=layout.pp, layers=layers),
            where="--set chunks",
            remedy=message("advice.at_most", most=layers // layout.pp),
        )
    if chunks * layout.pp > MOST_PASSES:
        raise ConfigError(
            message("refused.too_many_chunks", chunks=chunks),
            where="--set chunks",
            remedy=message("advice.at_most", most=MOST_PASSES // layout.pp),
        )
    return kind, chunks


def _check_size(change: Change, stages: int) -> None:
    most = max(1, MOST_PASSES // stages)
    if change.whole() > most:
        raise ConfigError(
            message("refused.too_large", name=change.name, value=change.value),
            where="--set",
            remedy=message("advice.at_most_of_stages", most=most, stages=stages),
        )


def _recorded_pipeline(
    account: Account, layout: ParallelLayout, schedule: ScheduleKind, times: RepairedTimes | None
) -> tuple[Pipeline, bool]:
    """Return the pipeline as it ran, and whether it ran split backward passes."""
    passes = recorded_passes(account, layout, times)
    kinds, ranks, chunks, replicas, steps, microbatches = passes.pass_ns.shape
    _check_size(Change("microbatches", str(microbatches), is_fix=False), ranks * chunks)
    by_stage = np.empty((kinds, ranks * chunks, replicas, steps * microbatches))
    for rank in range(ranks):
        for chunk in range(chunks):
            stage = stage_of(schedule, rank, chunk, ranks)
            by_stage[:, stage] = passes.pass_ns[:, rank, chunk].reshape(kinds, replicas, -1)
    collective = account.events.frame[~account.events.frame["is_p2p"]]
    pipeline = Pipeline(
        schedule=schedule,
        ranks=ranks,
        chunks=chunks,
        microbatches=microbatches,
        pass_ns=by_stage,
        head_ns=passes.head_ns,
        tail_ns=passes.tail_ns,
        message_ns=passes.message_ns,
        replicas_meet=bool((collective["axis"] == Axis.DP.value).any()),
        stages_meet=bool(collective["axis"].isin([Axis.PP.value, Axis.OTHER.value]).any()),
        skew_share=_skew_share(account),
    )
    return pipeline, passes.is_split


def _skew_share(account: Account) -> float:
    """Return how much of the skew at the end of the first step the ranks began it with, 0..1."""
    windows = account.windows
    if not windows.chained:
        return 0.0
    first = windows.frame[windows.frame["step"] == windows.steps[0]]
    before, after = (
        (first[name] - first[name].mean()).to_numpy(np.float64) for name in ("start_ns", "end_ns")
    )
    square = float(after @ after)
    return float(np.clip(before @ after / square, 0.0, 1.0)) if square > 0 else 0.0


def _centre(pass_ns: FloatArray) -> FloatArray:
    """Return the usual mean pass of every stage, ``(kind, stage)``.

    The median over replicas; of an even number the lower of the two in the middle, since the upper
    may be that of a slow rank: of two replicas their mean would contain it.
    """
    return np.asarray(np.quantile(pass_ns.mean(axis=3), 0.5, axis=2, method="lower"))


def _with_costs(
    before: Pipeline, costs: FloatArray, schedule: ScheduleKind, chunks: int
) -> FloatArray:
    """Return the passes with other costs of the stages.

    By how much a pass is longer than is usual on its stage belongs to the rank that runs
    it, and stays with the rank where stages move to others.
    """
    centre = _centre(before.pass_ns)[:, :, None, None]
    now, then = (
        _holders(before.schedule, before.ranks, before.chunks),
        _holders(schedule, before.ranks, chunks),
    )
    if np.array_equal(now, then):
        return before.pass_ns * (costs[:, :, None, None] / centre)
    of_rank = np.stack(
        [before.pass_ns[:, now == rank].sum(axis=1) for rank in range(before.ranks)], 1
    )
    usual = np.stack([centre[:, now == rank].sum(axis=1) for rank in range(before.ranks)], 1)
    return np.asarray(costs[:, :, None, None] * (of_rank / usual)[:, then])


def _holders(schedule: ScheduleKind, ranks: int, chunks: int) -> np.ndarray:
    """Return the pipeline rank of every stage."""
    holder = np.empty(ranks * chunks, np.int64)
    for rank in range(ranks):
        for chunk in range(chunks):
            holder[stage_of(schedule, rank, chunk, ranks)] = rank
    return holder
