"""A simulated job as the files of a production tracer, with what such files lack."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from tests.truth.foreign.job import Job
from tests.truth.foreign.program import BACKWARD, COLLECTION, DP_OPERATIONS, FORWARD

STAMPS = ("float64", "float32", "microseconds")
"""How times are stored: in full, as the published record, or cut to whole microseconds."""


@dataclass(frozen=True, slots=True)
class Recording:
    """How a job was recorded.

    Attributes:
        noise_s: Standard deviation of each start and end.
        stamps: One of `STAMPS`.
        without: Types of operations that are not in the file.
        tp, cp, ep: Ranks of which only the first of each group is recorded.
    """

    noise_s: float = 0.0
    stamps: str = "float32"
    without: tuple[str, ...] = ()
    tp: int = 1
    cp: int = 1
    ep: int = 1

    def rank(self, job: Job, dp: int, stage: int) -> int:
        """Return the global rank of a recorded replica and stage: stages slowest, tensor fastest."""
        return (stage * job.shape.dp + dp) * self.ep * self.cp * self.tp


def write(job: Job, recording: Recording, folder: Path, rng: np.random.Generator) -> None:
    """Write ``trace-NAME.parquet`` and ``meta-NAME.yaml`` for the name of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = _rows(job, recording, rng)
    rows = rows[~rows["optype"].isin(recording.without)]
    rows = _stamped(rows, recording.stamps)
    rows = rows.astype(
        {
            "dp_rank": "int8", "stage": "int8", "rank": "int16", "optype": "category",
            "seq_id": "int32", "mc": "int8", "mb_id": "int8", "gmc": "int16",
        }
    )  # fmt: skip
    rows.to_parquet(folder / f"trace-{folder.name}.parquet", index=False)
    shape = job.shape
    sizes = {
        "dp_size": shape.dp * recording.ep,
        "dsp_size": recording.cp,
        "pp_size": shape.pp,
        "tp_size": recording.tp,
        "vpp_size": 1,
        "world_size": shape.dp * shape.pp * recording.ep * recording.cp * recording.tp,
    }
    lines = [f"trial_name: {folder.name}", "run_id: 0", *(f"{k}: {v}" for k, v in sizes.items())]
    text = "\n".join(lines) + "\n"
    (folder / f"meta-{folder.name}.yaml").write_text(text, encoding="utf-8")


def _rows(job: Job, recording: Recording, rng: np.random.Generator) -> pd.DataFrame:
    """Return one row per recorded operation, with ``start_ts`` and ``end`` in seconds."""
    timeline = job.timeline()
    origin = timeline.begins()
    step_ids = np.cumsum(rng.integers(1, 4, job.shape.steps))
    frames = []
    for stage, items in enumerate(job.programs()):
        for place, item in enumerate(items):
            start = _noisy(timeline.starts[stage][place] - origin, recording, rng)
            end = np.maximum(_noisy(timeline.ends[stage][place] - origin, recording, rng), start)
            for name, position in item.operations:
                frames += [
                    pd.DataFrame(
                        {
                            "dp_rank": dp * recording.ep, "stage": stage,
                            "rank": recording.rank(job, dp, stage), "step": step_ids,
                            "optype": name, "start_ts": start[dp], "end": end[dp],
                            "seq_id": position, **_place(name, item.microbatch, stage),
                        }
                    )
                    for dp in range(job.shape.dp)
                ]  # fmt: skip
    rows = pd.concat(frames, ignore_index=True)
    return rows.sort_values(["rank", "step", "start_ts"], kind="stable", ignore_index=True)


def _place(name: str, microbatch: int, stage: int) -> dict[str, int]:
    """Return what the format says of chunk and microbatch; -1 where it says nothing."""
    is_pass = name in (FORWARD, BACKWARD)
    return {
        "mc": 0 if is_pass or name in DP_OPERATIONS else -1,
        "mb_id": 0 if name == COLLECTION else microbatch,
        "gmc": stage if is_pass else -1,
    }


def _noisy(times, recording: Recording, rng: np.random.Generator):
    if not recording.noise_s:
        return times
    return times + recording.noise_s * rng.normal(size=times.shape).clip(-3, 3)


def _stamped(rows: pd.DataFrame, stamps: str) -> pd.DataFrame:
    rows = rows.assign(start_ts=rows["start_ts"] - rows["start_ts"].min().clip(max=0))
    if stamps == "microseconds":
        rows = rows.assign(
            start_ts=np.floor(rows["start_ts"] * 1e6) / 1e6, end=np.floor(rows["end"] * 1e6) / 1e6
        )
    kind = "float32" if stamps == "float32" else "float64"
    rows = rows.assign(duration=(rows["end"] - rows["start_ts"]).clip(lower=0).astype(kind))
    rows["start_ts"] = rows["start_ts"].astype(kind)
    columns = "dp_rank stage rank step optype start_ts duration seq_id mc mb_id gmc"
    return rows[columns.split()]
