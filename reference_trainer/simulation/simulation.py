"""One rank of a job too large for this machine: its memory and its order of passes.

The trainer's own code runs, from the building of the stages to the optimizer,
with two substitutes: tensors have shapes and no memory (torch's FakeTensorMode),
and collectives return at once (torch's fake process group). ``LiveStorage``
counts what would be held. Nothing has a duration here. ::

    build | optimizer state | weights | all passes of the pipeline | update
                            `------------- one step -------------'

Tensors pretend to be on a CPU, since torch without CUDA cannot pretend anything
else: attention is the fused one of a CPU, which keeps what that of a GPU keeps.
The optimizer is torch's fused AdamW, because the others read numbers from
tensors, which have none here; what they would hold for a moment is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from meshscope.analyze.formulas.planning.pipeline_replay import held_peak
from meshscope.analyze.formulas.schedules.passes import Pass
from meshscope.analyze.formulas.schedules.schedule_records import rank_orders
from meshscope.probe.schema.message import message
from meshscope.probe.schema.terms import Axis

from ..compat import FakeTensorMode
from ..config.checks import require
from ..config.config import TrainerConfig
from ..config.sections import DeviceConfig, PaceConfig
from ..faults.faults import FaultInjector
from ..faults.ground_truth import GroundTruth
from ..parallel.comm import Communicator, PerfectLinks
from ..parallel.mesh import Mesh, open_simulated_mesh
from ..replica.assembly import Parts, build_parts
from ..replica.memory_account import HeldBytes, LiveStorage, Origin
from .pass_watch import Holding, PassWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The highest moment of one phase."""

    name: str
    """The phase, named as in the account of a real run."""
    peak_bytes: int
    """Bytes at that moment."""
    holdings: Mapping[str, int]
    """The same by ``Holding``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRank:
    """What the simulation of one rank found."""

    rank: int
    """Global rank."""
    position: int
    """Place on the pipeline axis."""
    parameters: int
    """Parameters of its stages, before they are sharded over replicas."""
    held: HeldBytes
    """What it keeps from step to step."""
    phases: tuple[PhaseMemory, ...]
    """``weights``, ``pipeline`` and ``update``."""
    activations_bytes: int
    """The most that was kept between two passes for backwards to come."""
    activations: Mapping[Origin, tuple[int, int]]
    """The same by the operator that made it: how many, and their bytes."""
    order: tuple[Pass, ...]
    """The passes in the order in which they ran."""
    microbatches: int
    """Microbatches that were run; see ``shortened``."""
    received_bytes: int
    """Of the buffers that one microbatch is received into."""
    sent_bytes: int
    """Of what is sent of one microbatch."""
    collectives: Mapping[tuple[str, Axis], int]
    """Collectives of the step by name and axis."""
    payload_bytes: Mapping[tuple[str, Axis], int]
    """Their payload."""


def simulate_rank(
    config: TrainerConfig, rank: int, *, every_microbatch: bool = False
) -> SimulatedRank:
    """Run one step of one rank without memory and without the other ranks.

    Args:
        config: The run; its device, pace, faults and data play no part.
        rank: Global rank.
        every_microbatch: Run all of them, though fewer show the same; see ``shortened``.

    Raises:
        ConfigError: The rank is outside the mesh, or the run has something that needs numbers.
    """
    check_simulation(config, rank)
    position = config.layout.coordinates(rank)["pp"]
    whole = _stripped(config)
    run = whole if every_microbatch else shortened(whole, position)
    live = LiveStorage(Holding.OTHER)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with open_simulated_mesh(run.layout, rank) as mesh, fake, live.watching():
        found = run_step(run, mesh, live)
    return _with_all_messages(found, config.schedule.microbatches - run.schedule.microbatches)


def check_simulation(config: TrainerConfig, rank: int) -> None:
    """Refuse what cannot be simulated.

    Raises:
        ConfigError: The rank is outside the mesh, or the run has something that needs numbers.
    """
    config.check_trainable()
    last = config.layout.world_size - 1
    require(
        0 <= rank <= last,
        message("refused.rank_outside", rank=rank, last=last),
        where="--simulate-rank",
        remedy=message("advice.ranks_of_mesh"),
    )
    require(
        config.moe.experts == 0 or config.moe.capacity_factor > 0,
        message("refused.sizes_of_router"),
        where="moe.capacity_factor",
        remedy=message("advice.even_load"),
    )
    require(
        not config.memory.offload,
        message("refused.offload_in_simulation"),
        where="memory.offload",
        remedy=message("advice.no_offload"),
    )


def shortened(config: TrainerConfig, position: int) -> TrainerConfig:
    """Return a run with the fewest microbatches whose order holds as many as the whole one does.

    Once a schedule is in its steady state, further rounds hold nothing more, and only cost time.

    Args:
        config: The whole run.
        position: Place of the rank on the pipeline axis.
    """
    layout, schedule = config.layout, config.schedule

    def held(microbatches: int) -> float:
        orders = rank_orders(schedule.kind, layout.pp, microbatches, layout.vpp)
        return held_peak(orders[position], config.layers_per_stage.__getitem__)

    whole = held(schedule.microbatches)
    enough = next(
        (
            microbatches
            for microbatches in range(2 * layout.pp, schedule.microbatches, layout.pp)
            if held(microbatches) == whole
        ),
        schedule.microbatches,
    )
    batch = config.microbatch_size * layout.dp * enough
    return replace(
        config,
        schedule=replace(schedule, microbatches=enough),
        train=replace(config.train, global_batch=batch),
    )


def _stripped(config: TrainerConfig) -> TrainerConfig:
    """Return a run without what waits, sleeps or writes."""
    return replace(
        config,
        device=DeviceConfig(),
        pace=PaceConfig(),
        memory=replace(config.memory, account=False),
        faults=(),
    )


def run_step(config: TrainerConfig, mesh: Mesh, live: LiveStorage) -> SimulatedRank:
    """Build a rank and run one step that has an optimizer state from the start.

    Nothing in here is fake: over a real mesh it is a real step.

    Args:
        config: The run.
        mesh: The groups of the rank.
        live: Counts what lives; its ``watching`` must be on.
    """
    comm = Communicator(PerfectLinks())
    silent = FaultInjector((), mesh.layout, mesh.rank, GroundTruth(None, mesh.rank, ()))
    parts = build_parts(config, mesh, comm, silent)
    _make_optimizer_state(parts.replica.optimizer)
    _label_what_is_kept(parts, live)
    held = parts.replica.kept().sizes()
    comm.collectives.clear()
    comm.payload_bytes.clear()
    passes = PassWatch(parts.pipeline.stages, live)
    tokens = config.model.seq_len // config.layout.cp
    ids = torch.zeros(config.train.global_batch // config.layout.dp, tokens, dtype=torch.int64)
    phases = _run_phases(parts, ids, passes, live)
    return SimulatedRank(
        rank=mesh.rank,
        position=mesh.pp.position,
        parameters=sum(weight.numel() for weight in parts.stages.parameters()),
        held=held,
        phases=phases,
        activations_bytes=passes.kept_bytes,
        activations=passes.kept,
        order=tuple(passes.order),
        microbatches=config.schedule.microbatches,
        received_bytes=passes.received_bytes // config.schedule.microbatches,
        sent_bytes=passes.sent_bytes // config.schedule.microbatches,
        collectives=dict(comm.collectives),
        payload_bytes=dict(comm.payload_bytes),
    )


def _run_phases(
    parts: Parts, ids: Tensor, passes: PassWatch, live: LiveStorage
) -> tuple[PhaseMemory, ...]:
    """Run one step phase by phase; return what each held at its peak."""
    steps: tuple[tuple[str, Holding, Callable[[], object]], ...] = (
        ("weights", Holding.WEIGHTS, parts.replica.start_step),
        ("pipeline", Holding.WEIGHTS, lambda: parts.pipeline.step(ids, ids)),
        ("update", Holding.UPDATE, lambda: _update(parts)),
    )
    phases = []
    for name, label, run in steps:
        live.start_phase()
        live.label = label
        run()
        passes.forget_sent()
        found = dict(live.peak_by_label)
        phases.append(PhaseMemory(name=name, peak_bytes=live.peak_bytes, holdings=found))
    return tuple(phases)


def _update(parts: Parts) -> None:
    """Sum the gradients and update the weights."""
    parts.replica.finish()
    parts.replica.update()


def _make_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Take an update by nothing, after which the optimizer has all the state it ever has."""
    if isinstance(optimizer, torch.optim.AdamW):
        for group in optimizer.param_groups:
            # The only form that reads no step counter, which has no value here.
            group.update(fused=True, foreach=False)
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    lacking = [weight for weight in weights if weight.grad is None]
    for weight in lacking:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for weight in lacking:
        weight.grad = None


def _label_what_is_kept(parts: Parts, live: LiveStorage) -> None:
    """Say what the tensors that exist before a step are for."""
    kept = parts.replica.kept()
    # Weights come last: in fp32 they lie in the same memory as their masters.
    live.relabel(kept.optimizer, Holding.OPTIMIZER)
    live.relabel(kept.gradients, Holding.GRADIENTS)
    live.relabel(kept.masters, Holding.MASTERS)
    live.relabel(kept.weights, Holding.WEIGHTS)


def _with_all_messages(found: SimulatedRank, left_out: int) -> SimulatedRank:
    """Return what was found with the messages of microbatches that were left out.

    torch's runtime makes a buffer per microbatch and direction before the first step, and keeps
    what it sends until the end of each, so messages are the only memory that grows with
    microbatches which the schedule does not hold.
    """
    received, sent = left_out * found.received_bytes, left_out * found.sent_bytes
    added = {"weights": 0, "pipeline": received + sent, "update": received}
    phases = []
    for phase in found.phases:
        messages = phase.holdings.get(Holding.MESSAGES, 0) + added[phase.name]
        more = {**phase.holdings, Holding.MESSAGES: messages}
        peak_bytes = phase.peak_bytes + added[phase.name]
        phases.append(replace(phase, peak_bytes=peak_bytes, holdings=more))
    return replace(found, phases=tuple(phases))
