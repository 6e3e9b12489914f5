"""Made-up NDTimeline jobs of any shape: 1F1B and interleaved pipelines with noisy times.

The order of operations on each worker is that of the schedule. Times respect that
order and nothing else: what the analysis makes of them is what is under test.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

SLOT_S = 0.1
"""From the start of one computation of a worker to that of the next."""
CATEGORIES = (
    "backward-compute", "backward-recv", "backward-send", "embedding-grads-all-reduce",
    "forward-compute", "forward-recv", "forward-send", "gc", "grads-reduce-scatter",
    "layernorm-grads-all-reduce", "optimizer", "optimizer-clip-main-grad", "params-all-gather",
    "separate-grads-all-reduce",
)  # fmt: skip
_TYPES = {
    "dp_rank": "int8", "stage": "int8", "rank": "int16", "step": "int64", "start_ts": "float32",
    "duration": "float32", "seq_id": "int32", "mc": "int8", "mb_id": "int8", "gmc": "int16",
}  # fmt: skip


@dataclass(frozen=True)
class JobShape:
    """Sizes and variants of a job; ``microbatches`` is a multiple of ``pp`` where vpp > 1."""

    pp: int = 2
    dp: int = 2
    tp: int = 1
    dsp: int = 1
    vpp: int = 1
    microbatches: int = 4
    steps: int = 2
    overlapped: bool = False
    """Gradients are reduced during the backward passes."""
    first_receive: bool = True
    """An interleaved schedule records the first, empty receive of stage 0."""
    idle_transfers: bool = False
    """Transfers that carried nothing are recorded at both ends of the step."""
    noise: float = 0.1
    """Relative spread of durations; workers differ by three times as much."""

    @property
    def reduces(self) -> bool:
        """Say whether there are collectives between replicas."""
        return self.dp * self.dsp > 1


def write_job(folder: Path, shape: JobShape, seed: int = 0, name: str = "J") -> Path:
    """Write trace and meta file of a made-up job; return the path of the trace."""
    frame = job_frame(shape, seed)
    path = write_frame(folder, frame, name)
    sizes = {f"{axis}_size": getattr(shape, axis) for axis in ("dp", "dsp", "pp", "tp", "vpp")}
    world = shape.dp * shape.dsp * shape.pp * shape.tp
    meta = {"trial_name": name, "run_id": 0} | sizes | {"world_size": world}
    (folder / f"meta-{name}.yaml").write_text("".join(f"{k}: {v}\n" for k, v in meta.items()))
    return path


def write_frame(folder: Path, frame: pd.DataFrame, name: str = "J") -> Path:
    """Write only a trace."""
    path = folder / f"trace-{name}.parquet"
    frame.to_parquet(path, index=False)
    return path


def job_frame(shape: JobShape, seed: int = 0) -> pd.DataFrame:
    """Return the rows of a job in the order of steps and ranks."""
    random = np.random.default_rng(seed)
    per_stage = [pd.DataFrame(_worker(shape, stage)) for stage in range(shape.pp)]
    parts = []
    for step in range(shape.steps):
        for stage, rows in enumerate(per_stage):
            for dp_rank in range(shape.dp):
                rank = (stage * shape.dp + dp_rank) * shape.tp * shape.dsp
                parts.append(
                    rows.assign(dp_rank=dp_rank, stage=stage, rank=rank, step=7 + 3 * step)
                )
    frame = pd.concat(parts, ignore_index=True)
    slowness = 1 + 3 * shape.noise * random.random((shape.dp, shape.pp))
    frame["duration"] *= slowness[frame["dp_rank"], frame["stage"]]
    frame["duration"] *= 1 + shape.noise * random.uniform(-1, 1, len(frame))
    # Below half the distance between two starts of a worker, so that their order stays.
    frame["start_ts"] += frame["stage"] * 0.5 * SLOT_S + random.uniform(0, 0.1 * SLOT_S, len(frame))
    frame["start_ts"] -= frame.groupby("step")["start_ts"].transform("min")
    frame["optype"] = pd.Categorical(frame["optype"], [*used(frame), "first-op"])
    return frame.astype(_TYPES)[["dp_rank", "stage", "rank", "step", "optype", "start_ts",
                                 "duration", "seq_id", "mc", "mb_id", "gmc"]]  # fmt: skip


def used(frame: pd.DataFrame) -> list[str]:
    """Return the types that occur, in the order of the format."""
    present = set(frame["optype"])
    return [name for name in CATEGORIES if name in present]


def compute_order(shape: JobShape, stage: int) -> list[tuple[str, int, int]]:
    """Return direction, chunk and microbatch of the computations of a stage, in order."""
    total = shape.microbatches * shape.vpp
    warmup = shape.pp - stage - 1
    if shape.vpp > 1:
        warmup = 2 * warmup + (shape.vpp - 1) * shape.pp
    warmup = min(warmup, total)
    forward = [("forward", *_place(shape, k)) for k in range(total)]
    backward = [("backward", shape.vpp - 1 - chunk, mb) for _, chunk, mb in forward]
    order = forward[:warmup]
    for k in range(total):
        order += forward[warmup + k : warmup + k + 1] + backward[k : k + 1]
    return order


def _place(shape: JobShape, k: int) -> tuple[int, int]:
    if shape.vpp == 1:
        return 0, k
    round_, rest = divmod(k, shape.pp * shape.vpp)
    return rest // shape.pp, round_ * shape.pp + rest % shape.pp


def _row(optype, start, duration, seq=0, mc=-1, mb=-1, gmc=-1):
    return {"optype": optype, "start_ts": start, "duration": duration, "seq_id": seq,
            "mc": mc, "mb_id": mb, "gmc": gmc}  # fmt: skip


def _worker(shape: JobShape, stage: int) -> list[dict]:
    """Return the operations of one worker in one step, before noise."""
    rows, seen, last_end = [], {"forward": 0, "backward": 0}, {}
    start = 3 * SLOT_S
    transfers = []
    for direction, chunk, mb in compute_order(shape, stage):
        seq, gmc = seen[direction], chunk * shape.pp + stage
        seen[direction] += 1
        rows.append(_row(f"{direction}-compute", start, 0.5 * SLOT_S, seq, chunk, mb, gmc))
        last_end[direction, chunk] = start + 0.7 * SLOT_S
        transfers += _transfers_of(shape, direction, gmc, seq, start)
        start += SLOT_S
    if shape.idle_transfers and shape.pp > 1:
        transfers += _idle_transfers(shape, stage, start)
    count = {}
    for optype, begin in sorted(transfers, key=lambda transfer: transfer[1]):
        rows.append(_row(optype, begin, 0.2 * SLOT_S, count.setdefault(optype, 0)))
        count[optype] += 1
    return rows + _collectives(shape, stage, start, last_end)


def _transfers_of(shape, direction, gmc, seq, start):
    """Return the transfers around one computation; interleaved schedules record empty ones too."""
    if shape.pp == 1:
        return []
    ahead = 1 if direction == "forward" else -1
    inside = lambda chunk: 0 <= chunk < shape.pp * shape.vpp  # noqa: E731
    everywhere = shape.vpp > 1
    found = []
    skipped = direction == "forward" and gmc == seq == 0 and not shape.first_receive
    if (inside(gmc - ahead) or everywhere) and not skipped:
        found.append((f"{direction}-recv", start - 0.3 * SLOT_S))
    if inside(gmc + ahead) or everywhere:
        found.append((f"{direction}-send", start + 0.75 * SLOT_S))
    return found


def _idle_transfers(shape, stage, end):
    """Return a receive after the last computation of its direction, a send before the first."""
    found = []
    if stage > 0:
        found += [("forward-recv", end), ("backward-send", -0.5 * SLOT_S)]
    if stage < shape.pp - 1:
        found += [("backward-recv", end), ("forward-send", -0.5 * SLOT_S)]
    return found


def _collectives(shape, stage, end, last_end):
    chunks = range(shape.vpp)
    tail = ["gc", "layernorm-grads-all-reduce"]
    if stage in (0, shape.pp - 1):
        tail.append("embedding-grads-all-reduce")
    rows = []
    if shape.reduces:
        rows += [_row("params-all-gather", SLOT_S * (0.2 + c), 0.5 * SLOT_S, c, c) for c in chunks]
    if shape.reduces and shape.overlapped:
        ends = [last_end["backward", c] for c in reversed(chunks)]
        rows += [
            _row("grads-reduce-scatter", begin, 0.3 * SLOT_S, i, shape.vpp - 1 - i)
            for i, begin in enumerate(ends)
        ]
        tail.append("separate-grads-all-reduce")
    elif shape.reduces:
        tail += ["grads-reduce-scatter"] * shape.vpp
    at = {}
    for i, optype in enumerate([*tail, "optimizer-clip-main-grad", "optimizer"]):
        seq = at.setdefault(optype, 0)
        at[optype] += 1
        chunk = seq if optype == "grads-reduce-scatter" else -1
        duration = 0.0 if optype == "gc" else 0.3 * SLOT_S
        rows.append(_row(optype, end + (1 + i) * SLOT_S, duration, seq, chunk))
    return rows
