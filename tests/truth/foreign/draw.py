"""Jobs drawn from a seed: made from a schedule, or the published one resampled."""

from dataclasses import dataclass, replace

import numpy as np
from tests.truth.foreign.job import DIRECTIONS, Fault, HeavyStage, Job, SlowRank, UnequalData
from tests.truth.foreign.program import (
    CLIP,
    DP_OPERATIONS,
    EMBEDDING,
    JOINS,
    LAYERNORM,
    OPTIMIZER,
    Item,
    Shape,
    program,
)
from tests.truth.foreign.record import STAMPS, Recording

KINDS = ("healthy", "slow", "slow at times", "two slow", "data", "slow and data")
"""What is wrong with a job, besides its stages."""
WITHOUT = {
    "": (), "emb": (EMBEDDING,), "clip": (CLIP,), "rs": ("grads-reduce-scatter",),
    "dp": DP_OPERATIONS, "ln": (LAYERNORM,),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """What jobs are drawn from; times in seconds."""

    stages: tuple[int, int] = (2, 9)
    replicas: tuple[int, ...] = (1, 2, 2, 3, 4, 8)
    microbatches: tuple[int, int] = (4, 17)
    steps: tuple[int, int] = (8, 25)
    factor: float = 3.0
    """Of a slow rank, at most."""
    jitter: tuple[float, ...] = (0.002, 0.01, 0.03)
    spread: tuple[float, ...] = (0, 0.02, 0.08)
    """Of the work of stages."""
    backward: tuple[float, float] = (1.8, 2.2)
    """How many times as long as forward."""
    transfer_s: tuple[float, float] = (1e-4, 5e-3)
    noise_s: tuple[float, ...] = (0.0, 1e-5, 4e-5, 1e-4)
    """Of stamps."""


USUAL = Ranges()
WIDE = Ranges(
    stages=(2, 11),
    replicas=(1, 2, 3, 4, 6, 12),
    microbatches=(2, 33),
    steps=(5, 40),
    factor=5.0,
    jitter=(0.002, 0.03, 0.06, 0.1),
    spread=(0, 0.05, 0.15),
    backward=(0.9, 3.0),
    transfer_s=(1e-4, 2e-2),
    noise_s=(0.0, 1e-4, 3e-4),
)


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """A job, how it is recorded, and what was drawn, in words."""

    job: Job
    recording: Recording
    recipe: dict[str, object]


def drawn(
    rng: np.random.Generator, kind: str, origin: Job | None = None, ranges: Ranges = USUAL
) -> Drawn:
    """Return a job with faults of a kind of `KINDS`; made from ``origin`` if there is one."""
    job, recipe = _resampled(origin, rng) if origin else _made(rng, ranges)
    faults = _faults(job.shape, kind, rng, ranges)
    job = replace(job, faults=(*job.faults, *faults))
    tag = str(rng.choice(list(WITHOUT)))
    group = str(rng.choice(["", "", "tp", "cp", "ep"]))
    recording = Recording(
        noise_s=float(rng.choice(ranges.noise_s)),
        stamps=str(rng.choice(STAMPS)),
        without=WITHOUT[tag],
        **({group: int(rng.choice([2, 4, 8]))} if group else {}),
    )
    shape = job.shape
    recipe |= {
        "kind": kind, "pp": shape.pp, "dp": shape.dp, "microbatches": shape.microbatches,
        "steps": shape.steps, "joins": list(shape.joins), "noise_us": 1e6 * recording.noise_s,
        "stamps": recording.stamps, "without": tag, "group": f"{group}{getattr(recording, group)}" if group else "",
    }  # fmt: skip
    return Drawn(job, recording, recipe)


def _faults(shape: Shape, kind: str, rng: np.random.Generator, ranges: Ranges) -> list[Fault]:
    faults: list[Fault] = []
    count = 2 if kind == "two slow" else int("slow" in kind)
    # Two slow ranks of a stage with few replicas are a slow stage.
    stages = rng.choice(shape.pp, count, replace=count > shape.pp or shape.dp >= 4)
    replicas = rng.choice(shape.dp, count, replace=shape.dp < 2 or len(set(stages)) == count)
    for stage, dp in zip(stages, replicas, strict=True):
        factor = float(np.exp(rng.uniform(np.log(1.05), np.log(ranges.factor))))
        steps = np.ones(shape.steps, bool)
        # A rank without replicas that is slow for good is a heavy stage.
        if kind == "slow at times" or shape.dp == 1:
            steps = _some(shape.steps, rng)
        faults.append(SlowRank(int(dp), int(stage), np.where(steps, factor, 1.0)))
    if "data" in kind:
        cv = rng.uniform(0.1, 0.5)
        work = rng.lognormal(0, cv, (shape.microbatches, shape.dp, shape.steps))
        faults.append(UnequalData(work / work.mean()))
    return faults


def _some(steps: int, rng: np.random.Generator) -> np.ndarray:
    """Return which steps are slow: from one on, every other, or a half at random."""
    way = rng.integers(3)
    if way == 0:
        return np.arange(steps) >= rng.integers(steps // 4, 3 * steps // 4)
    if way == 1:
        return np.arange(steps) % 2 == rng.integers(2)
    return rng.permutation(steps) < steps // 2


def _resampled(origin: Job, rng: np.random.Generator) -> tuple[Job, dict[str, object]]:
    """Return the published job with other replicas: each is a recorded one, its steps shuffled."""
    dp = int(rng.choice([2, 2, 4]))
    steps = int(rng.integers(12, origin.shape.steps + 1))
    lanes = np.array([0, 1] if dp == 2 else rng.integers(origin.shape.dp, size=dp))
    order = np.array([rng.permutation(origin.shape.steps)[:steps] for _ in lanes])
    taken = {
        name: tuple(array[:, lanes[:, None], order] for array in getattr(origin, name))
        for name in ("jitter", "wires", "gaps")
    }
    shape = replace(origin.shape, dp=dp, steps=steps)
    return replace(origin, shape=shape, **taken), {"origin": "published"}


def _made(rng: np.random.Generator, ranges: Ranges) -> tuple[Job, dict[str, object]]:
    join = str(rng.choice(JOINS))
    shape = Shape(
        pp=int(rng.integers(*ranges.stages)),
        dp=int(rng.choice(ranges.replicas)),
        microbatches=int(rng.integers(*ranges.microbatches)),
        steps=int(rng.integers(*ranges.steps)),
        joins=() if join == "none" else (join,),
    )
    forward = rng.uniform(0.02, 0.12)
    spread = rng.choice(ranges.spread)
    centres = forward * np.array([[1.0], [rng.uniform(*ranges.backward)]]) * np.ones(shape.pp)
    centres *= 1 + spread * rng.uniform(-1, 1, shape.pp)
    faults: tuple[Fault, ...] = ()
    if rng.random() < 0.5:
        heavy = shape.pp - 1 if rng.random() < 0.7 else int(rng.integers(shape.pp))
        centres[:, heavy] *= 1 + rng.uniform(0.1, 1.1) * np.array([1.0, rng.uniform(0.4, 1.0)])
        faults = (HeavyStage(heavy),)
    uneven = rng.choice(ranges.jitter)
    slowest = rng.uniform(*ranges.transfer_s)
    parts = [
        _times(program(shape, stage), shape, forward, slowest, uneven, rng)
        for stage in range(shape.pp)
    ]
    jitter, wires, gaps = zip(*parts, strict=True)
    job = Job(shape, centres, jitter, wires, gaps, faults)
    return job, {"origin": "made", "jitter": float(uneven), "heavy": [f.stage for f in faults]}


def _times(
    items: tuple[Item, ...],
    shape: Shape,
    forward: float,
    transfer: float,
    uneven: float,
    rng: np.random.Generator,
):
    """Return jitter, wires and gaps of the items of a stage."""
    lanes = (shape.dp, shape.steps)
    jitter = np.ones((len(items), *lanes))
    wires, gaps = np.zeros_like(jitter), np.empty_like(jitter)
    usual = {
        LAYERNORM: 4e-5, EMBEDDING: 0.05 * forward, CLIP: 2e-4, OPTIMIZER: 0.6 * forward,
        "params-all-gather": 0.4 * forward, "grads-reduce-scatter": 0.8 * forward,
    }  # fmt: skip
    for place, item in enumerate(items):
        # From one operation to the next takes some microseconds, around the tail milliseconds.
        is_inside = item.name in DIRECTIONS or "-send" in item.name or "-recv" in item.name
        gaps[place] = (5e-6 if is_inside else 1e-3) * rng.lognormal(0, 0.3, lanes)
        if place == 0:
            gaps[place] = rng.uniform(0, 0.05 * forward, (shape.dp, 1)) + gaps[place]
        if item.is_pass:
            jitter[place] = 1 + uneven * rng.normal(size=lanes).clip(-3, 3)
        elif item.operations and item.name != "gc":
            wires[place] = usual.get(item.name, transfer) * rng.lognormal(0, 0.05, lanes)
    return jitter, wires, gaps
