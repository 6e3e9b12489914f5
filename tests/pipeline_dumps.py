"""Pipeline visualiser dumps of 1F1B with a known cost of layers and head, and stated memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

STEPS = 6
MICROBATCHES = 16
LAYER_MS, HEAD_MS = 10.0, 15.0


def write_dumps(folder: Path, layers: Sequence[int], memory_gib: Sequence[float]) -> float:
    """Write one dump for each stage; return the step time, ms.

    A layer takes 10 ms forward and 20 ms backward, the head 15 and 30 ms. The first iterations of the
    files are like the others.
    """
    stages = len(layers)
    forward = [LAYER_MS * count for count in layers]
    forward[-1] += HEAD_MS
    start: dict[tuple[str, int, int], float] = {}
    end: dict[tuple[str, int, int], float] = {}
    free, left = [0.0] * stages, [_order(stage, stages) for stage in range(stages)]
    while any(left):
        for stage, passes in enumerate(left):
            while passes and (ready := _ready(end, passes[0], stage, stages)) is not None:
                kind, number = passes.pop(0)
                begin = max(free[stage], ready)
                free[stage] = begin + forward[stage] * (1 if kind == "fwd" else 2)
                start[kind, stage, number], end[kind, stage, number] = begin, free[stage]
    folder.mkdir(parents=True, exist_ok=True)
    for stage in range(stages):
        lists = {
            f"{kind}_{name}": [times[kind, stage, number] for number in range(MICROBATCHES)]
            for kind in ("fwd", "bwd")
            for name, times in (("start", start), ("end", end))
        }
        step = {**lists, "total": max(free), "memory": memory_gib[stage]}
        dump = {str(number): step for number in range(STEPS)}
        (folder / f"pp_rank_{stage}.json").write_text(json.dumps(dump))
    sizes = {"pp_size": stages, "num_mbs": MICROBATCHES, "tp_size": 1, "dp_size": 1}
    (folder / "config.json").write_text(json.dumps(sizes))
    return max(free)


def _order(stage: int, stages: int) -> list[tuple[str, int]]:
    ahead = min(stages - 1 - stage, MICROBATCHES)
    order = [("fwd", number) for number in range(ahead)]
    for number in range(MICROBATCHES - ahead):
        order += [("fwd", ahead + number), ("bwd", number)]
    return order + [("bwd", number) for number in range(MICROBATCHES - ahead, MICROBATCHES)]


def _ready(
    end: dict[tuple[str, int, int], float], one: tuple[str, int], stage: int, stages: int
) -> float | None:
    kind, number = one
    if kind == "fwd":
        return 0.0 if stage == 0 else end.get(("fwd", stage - 1, number))
    before = ("fwd", stage, number) if stage == stages - 1 else ("bwd", stage + 1, number)
    return end.get(before)
