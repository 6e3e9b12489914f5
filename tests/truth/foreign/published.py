"""The published production job as a program with factors, from its record alone."""

from pathlib import Path

import numpy as np
import pandas as pd
from tests.truth.foreign.job import DIRECTIONS, HeavyStage, Job
from tests.truth.foreign.program import Item, Shape, program
from tests.truth.foreign.simulate import Key, Times, keys


def published(parquet: Path) -> Job:
    """Return the job of the record: simulated with nothing taken away it happens as recorded.

    Its last stages meet once more before the tail, which no operation records: they begin the
    layernorm reduction a constant time after the later of them has ended its last pass.
    """
    rows = pd.read_parquet(parquet)
    rows = rows.assign(
        optype=rows["optype"].astype(str),
        start=rows["start_ts"].astype(float),
        end=rows["start_ts"].astype(float) + rows["duration"].astype(float),
    )
    shape = Shape(
        pp=rows["stage"].nunique(),
        dp=rows["dp_rank"].nunique(),
        microbatches=int(rows["mb_id"].max()) + 1,
        steps=rows["step"].nunique(),
        joins=("loss",),
    )
    programs = [program(shape, stage) for stage in range(shape.pp)]
    times = rows.set_index(["stage", "optype", "seq_id", "dp_rank", "step"])[["start", "end"]]
    times = times.sort_index()
    starts, ends = zip(
        *(_recorded(times, stage, items, shape) for stage, items in enumerate(programs)),
        strict=True,
    )
    return _factors(shape, programs, starts, ends)


def _recorded(
    times: pd.DataFrame, stage: int, items: tuple[Item, ...], shape: Shape
) -> tuple[Times, Times]:
    """Return start and end of each item; of a join both are the end of the item before."""
    starts = np.empty((len(items), shape.dp, shape.steps))
    ends = np.empty_like(starts)
    for place, item in enumerate(items):
        if not item.operations:
            starts[place] = ends[place] = ends[place - 1]
            continue
        found = [times.loc[(stage, *operation)].unstack("step") for operation in item.operations]
        starts[place] = np.max([frame["start"].to_numpy() for frame in found], axis=0)
        ends[place] = np.max([frame["end"].to_numpy() for frame in found], axis=0)
    return starts, ends


def _factors(
    shape: Shape,
    programs: list[tuple[Item, ...]],
    starts: tuple[Times, ...],
    ends: tuple[Times, ...],
) -> Job:
    """Return the job whose wires, gaps and passes are those of the record."""
    latest = _latest(programs, starts)
    centres = np.empty((2, shape.pp))
    jitter, wires, gaps = [], [], []
    for stage, items in enumerate(programs):
        before = np.concatenate([np.zeros_like(ends[stage][:1]), ends[stage][:-1]])
        gap, lengths = starts[stage] - before, ends[stage] - starts[stage]
        for place, item in enumerate(items):
            for dp, key in _attended(item, shape.dp):
                # Of an item with several meetings the last to be complete counts.
                after = ends[stage][place, dp] - latest[key]
                lengths[place, dp] = np.minimum(lengths[place, dp], after)
                if not item.operations:
                    # The join ends when the last has come; what follows is the gap of the next.
                    lengths[place, dp] = 0
                    gap[place + 1, dp] = starts[stage][place + 1, dp] - latest[key]
        factor = np.ones_like(gap)
        for row, direction in enumerate(DIRECTIONS):
            own = [i for i, item in enumerate(items) if item.name == direction]
            centres[row, stage] = np.median(lengths[own].mean(axis=(0, 2)))
            factor[own] = lengths[own] / centres[row, stage]
        lengths[[item.is_pass for item in items]] = 0
        jitter.append(factor), wires.append(lengths), gaps.append(gap)
    heavy = HeavyStage(int(centres.sum(axis=0).argmax()))
    return Job(shape, centres, tuple(jitter), tuple(wires), tuple(gaps), faults=(heavy,))


def _attended(item: Item, replicas: int) -> list[tuple[int, Key]]:
    """Return each meeting of an item with the replica that attends it."""
    return [(dp, key) for dp in range(replicas) for key in keys(item, dp)]


def _latest(programs: list[tuple[Item, ...]], starts: tuple[Times, ...]) -> dict[Key, Times]:
    """Return when the last member of each meeting has come, by step."""
    latest: dict[Key, Times] = {}
    for stage, items in enumerate(programs):
        for place, item in enumerate(items):
            for dp, key in _attended(item, starts[stage].shape[1]):
                begin = starts[stage][place, dp]
                latest[key] = np.maximum(latest.get(key, begin), begin)
    return latest
