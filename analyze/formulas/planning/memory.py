"""What each pipeline rank holds at the highest moment of a step, term by term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from meshscope.probe.schema.terms import ScheduleKind

from ...tables.arrays import FloatArray
from ..schedules.passes import Order, PassKind
from ..schedules.schedule_records import SCHEDULES, rank_orders
from . import moments
from .job import PlannedJob, Recompute
from .layer_parts import PAPER, layer_parts
from .states import (
    RankParameters,
    layer_on_rank,
    layers_of_stage,
    rank_parameters,
    stages_of_rank,
    state_terms,
)
from .terms import Category, Term

_MOST_ORDERED = 1 << 17
"""Passes above which whole rounds in the steady phase are left out: none holds more."""
_BUFFERS = "tensors that are live at once in Megatron-core"


class StageMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline rank; all ranks there are alike."""

    stage: int
    """Pipeline rank."""
    stages: tuple[int, ...]
    """Its stages in model order."""
    layers: int
    parameters: RankParameters
    in_flight: float
    """Microbatches whose activations are held at once, through all layers of the rank."""
    in_flight_chunks: int
    """The same in passes through one chunk."""
    moment: str
    """When most is held."""
    terms: tuple[Term, ...]

    def total(self, category: Category) -> float:
        """Return the bytes of a category."""
        return sum(term.size_bytes for term in self.terms if term.category is category)

    @property
    def allocated_bytes(self) -> float:
        """Return the sum of all terms."""
        return sum(term.size_bytes for term in self.terms)


def stage_memory(job: PlannedJob) -> tuple[StageMemory, ...]:
    """Return what every pipeline rank holds when it holds most."""
    layout = job.layout
    enough = _enough(job.schedule, layout.pp, job.microbatches, layout.vpp)
    orders = rank_orders(job.schedule, layout.pp, enough, layout.vpp)
    return tuple(_of_rank(job, rank, order) for rank, order in enumerate(orders))


def chunks_in_flight(
    schedule: ScheduleKind, ranks: int, microbatches: int, chunks: int
) -> list[float]:
    """Return the most microbatches that each rank holds at once, through all its chunks."""
    enough = _enough(schedule, ranks, microbatches, chunks)
    orders = rank_orders(schedule, ranks, enough, chunks)
    return [float(_held(order, ranks, chunks).sum(axis=1).max()) / chunks for order in orders]


def _enough(schedule: ScheduleKind, ranks: int, microbatches: int, chunks: int) -> int:
    """Return so many microbatches that no more are ever held with more."""
    most, pp = microbatches, ranks
    if schedule not in SCHEDULES or SCHEDULES[schedule].holds_all:
        return most
    if 2 * most * chunks * pp <= _MOST_ORDERED:
        return most
    # A multiple of the ranks goes, so that the rounds of interleaving stay as they are.
    return min(most, 4 * pp + most % pp)


def _held(order: Order, ranks: int, chunks: int) -> FloatArray:
    """Return the microbatches held of each chunk after every pass, ``(pass, chunk)``."""
    step = {PassKind.FORWARD: 1.0, PassKind.BACKWARD: -1.0, PassKind.WEIGHT: -1.0}
    change = np.zeros((len(order), chunks))
    change[np.arange(len(order)), [one.stage // ranks for one in order]] = [
        step.get(one.kind, 0.0) for one in order
    ]
    return np.asarray(change.cumsum(axis=0))


def _of_rank(job: PlannedJob, rank: int, order: Order) -> StageMemory:
    stages = stages_of_rank(job, rank)
    kept = np.array([sum(_kept(job, stage).values()) for stage in stages])
    logits = np.array([_logits(job, stage) for stage in stages])
    held = _held(order, job.layout.pp, len(stages))
    # During a pass its own microbatch is still held.
    own = np.array([one.kind is not PassKind.FORWARD for one in order])
    during = np.where(own[:, None], np.vstack([np.zeros(len(stages)), held[:-1]]), held)
    name, at, extra = _highest(job, order, stages, during @ (kept + logits))
    at_peak = during[at]
    layers = [layer for stage in stages for layer in layers_of_stage(job, stage)]
    parameters = rank_parameters(job, rank)
    whole = max(sum(kept), 1.0)
    most = int(np.argmax(held @ kept)) if kept.any() else int(np.argmax(held.sum(axis=1)))
    return StageMemory(
        stage=rank,
        stages=stages,
        layers=len(layers),
        parameters=parameters,
        in_flight=float(held[most] @ kept / whole) if kept.any() else float(held[most].mean()),
        in_flight_chunks=int(held.sum(axis=1).max()),
        moment=name,
        terms=(
            *state_terms(job, parameters),
            *_activation_terms(job, stages, at_peak),
            *_logit_terms(job, stages, at_peak, name),
            *_buffer_terms(job, rank, layers, name, extra),
        ),
    )


def _kept(job: PlannedJob, stage: int) -> dict[str, float]:
    """Return what a stage keeps of one microbatch, by the name of the part."""
    found: dict[str, float] = {}
    layers = [*layers_of_stage(job, stage)]
    if stage == job.stages - 1:
        layers += [job.model.num_layers - 1] * job.model.mtp_layers
        found["final norm"] = 2 * moments.hidden_bytes(job) / job.shared_by
    if stage == 0 and job.hidden_dropout:
        found["embedding dropout"] = moments.hidden_bytes(job) / 2 / job.shared_by
    for layer in layers:
        for part, size in moments.kept_of_layer(job, layer).items():
            found[part] = found.get(part, 0.0) + size
    return found


def _logits(job: PlannedJob, stage: int) -> float:
    return moments.logits_kept_bytes(job) if stage == job.stages - 1 else 0.0


def _highest(
    job: PlannedJob, order: Order, stages: Sequence[int], held: FloatArray
) -> tuple[str, int, float]:
    """Return the name of the highest moment, its pass, and what it holds beyond what is kept."""
    forward = np.array([one.kind is PassKind.FORWARD for one in order])
    weight = np.array([one.kind is PassKind.WEIGHT for one in order])
    chunk = np.array([one.stage // job.layout.pp for one in order])
    best = ("between passes", int(held.argmax()), 0.0)
    top = float(held.max())
    for index, stage in enumerate(stages):
        for name, size, in_forward in _moments(job, stage):
            allowed = (chunk == index) & (forward == in_forward) & ~weight
            reached = np.where(allowed, held + size, -np.inf)
            if float(reached.max()) > top:
                top, best = float(reached.max()), (name, int(reached.argmax()), size)
    return best


def _moments(job: PlannedJob, stage: int) -> Iterator[tuple[str, float, bool]]:
    """Yield name, bytes beyond what is kept, and whether it is in the forward."""
    layers, whole = layers_of_stage(job, stage), moments.hidden_bytes(job)
    # The first microbatch of a rank to go back meets its last layer first.
    kinds = {moments.layer_backward_bytes(job, layer) for layer in layers[-1:]}
    if kinds:
        yield "backward of a layer", max(kinds), False
    if stage == job.stages - 1:
        kept, half = moments.logits_kept_bytes(job), moments.logit_bytes(job, 2)
        yield "loss", half if kept > half else 0.0, True
        gathered = whole * (2 if job.shared_by > 1 else 1) + whole / job.shared_by
        gradient = moments.vocabulary_gradient_bytes(job)
        yield "backward of the loss", half if kept > half else 0.0, False
        yield "backward of the head", half - kept + gradient + gathered, False
    if stage == 0:
        kept_here = sum(_kept(job, stage).values()) + _logits(job, stage)
        size = moments.vocabulary_gradient_bytes(job) + whole - kept_here
        yield "backward of the embedding", size, False


def _activation_terms(job: PlannedJob, stages: Sequence[int], held: FloatArray) -> Iterator[Term]:
    """Yield the kept activations, one term for each part."""
    sizes: dict[str, float] = {}
    for stage, count in zip(stages, held, strict=True):
        for part, size in _kept(job, stage).items():
            sizes[part] = sizes.get(part, 0.0) + float(count) * size
    texts = {"final norm": ("2 x 2 h", PAPER), "embedding dropout": ("1 byte x h", PAPER)}
    layers = {layer for stage in stages for layer in layers_of_stage(job, stage)}
    for layer in sorted(layers):
        for one in layer_parts(job.model, layer, moments.sharing_of(job)):
            texts.setdefault(one.part, (one.formula, one.source))
    if job.recompute is Recompute.FULL:
        texts["inputs of norms"] = (f"2 h / {job.shared_by}: input of the layer", PAPER)
    for name, size in sizes.items():
        formula, source = texts.get(name, ("", PAPER))
        yield Term(
            category=Category.ACTIVATIONS,
            name=name,
            size_bytes=size,
            formula=f"{formula}: bytes a token and layer; {_counts(held)} microbatches in flight",
            source=source,
        )


def _counts(held: FloatArray) -> str:
    return " + ".join(f"{count:g}" for count in held)


def _logit_terms(
    job: PlannedJob, stages: Sequence[int], held: FloatArray, moment: str
) -> Iterator[Term]:
    """Yield the logits at the highest moment: what is kept, and the copy of the moment."""
    last = job.stages - 1
    if last not in stages:
        return
    kept, half = moments.logits_kept_bytes(job), moments.logit_bytes(job, 2)
    count = float(held[list(stages).index(last)])
    sizes = [("kept by the loss", count * kept, "fused: 2" if kept == half else "fp32: 4")]
    if moment in ("loss", "backward of the loss") and kept > half:
        sizes.append(("logits beside their fp32 copy", half, "2"))
    if moment == "backward of the head" and kept > half:
        sizes.append(("fp32 copy freed, gradient made", half - kept, "2 - 4"))
    for name, size, each in sizes:
        if size:
            yield Term(
                category=Category.LOGITS,
                name=name,
                size_bytes=size,
                formula=f"{each} bytes x b s V / {job.layout.tp}",
                source="arXiv 2205.05198, section 4.3",
            )


def _buffer_terms(
    job: PlannedJob, rank: int, layers: list[int], moment: str, extra: float
) -> Iterator[Term]:
    """Yield what is neither state nor kept: stand-ins, messages, the moment itself, workspaces."""
    sizes = {"workspaces": (float(moments.WORKSPACE_BYTES), "64 MiB", "measured")}
    if moment in ("loss", "backward of the loss"):
        extra = 0.0
    elif moment == "backward of the head":
        extra -= moments.logit_bytes(job, 2) - moments.logits_kept_bytes(job)
    sizes[moment] = (extra, "see docs/plan.md, moments", _BUFFERS)
    replica_proxies = moments.stand_in_bytes(job, layers)
    text = "one gradient in the weights' type for each shape of a matrix"
    sizes["stand-ins of gradients"] = (replica_proxies, text, "Transformer Engine, get_dummy_wgrad")
    if job.layout.pp > 1:
        ends = 1 if rank in (0, job.layout.pp - 1) and job.layout.vpp == 1 else 2
        size = ends * moments.hidden_bytes(job) / job.shared_by
        sizes["messages"] = (size, f"{ends} x 2 b s h / {job.shared_by}", _BUFFERS)
    if job.layout.cp > 1:
        keys = job.model.kv_heads * (job.model.head_dim + job.model.v_head_dim)
        size = 4.0 * job.tokens * max(keys / job.layout.tp, 1)
        sizes["keys and values of the ring"] = (size, "2 x 2 (k + v)", "arXiv 2310.01889")
    if job.zero == 3:
        sizes["whole weights"] = (_whole_units(job, layers), "2 layers, and 1 gradient", "FSDP2")
    for name, (size, formula, source) in sizes.items():
        if size:
            yield Term(
                category=Category.BUFFERS,
                name=name,
                size_bytes=size,
                formula=formula,
                source=source,
            )


def _whole_units(job: PlannedJob, layers: list[int]) -> float:
    """Return the weights of two layers gathered (one prefetched), and the gradient of one."""
    sizes = (job.layout.tp, job.etp, job.layout.ep)
    largest = max((sum(layer_on_rank(job.model, layer, *sizes)) for layer in layers), default=0)
    return float(largest * (2 * job.weight_bytes + job.gradient_bytes))
