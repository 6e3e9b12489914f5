"""Published tables of measured step times, asked through captures that show what they say."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.truth.foreign.case import Case, Check, Reply
from tests.truth.foreign.job import HeavyStage, Job
from tests.truth.foreign.pipelines import GAIN, NEAR_GAIN
from tests.truth.foreign.program import OPTIMIZER, Shape, program
from tests.truth.foreign.readers import STAGE, cause, first_fault
from tests.truth.foreign.record import Recording, write

TABLES = "published tables"


def tables(shared: Path) -> list[Case]:
    """Return the cases of the tables that are there."""
    folder = shared / "tables"
    vocabulary, steps = (
        folder / "vocab_parallel_s2048.json",
        folder / "mlperf_llama31_steps.json.gz",
    )
    cases = _layers(json.loads(vocabulary.read_text("utf-8"))) if vocabulary.is_file() else []
    if steps.is_file():
        cases += _repeated(json.loads(gzip.decompress(steps.read_bytes())))
    return cases


def _layers(rows: Sequence[dict[str, Any]]) -> list[Case]:
    """Return what moving layers off the output head returned on 8 A100s, and what we foretell."""
    cases = []
    measured = {(row["v"], row["method"]): row for row in rows}
    for (size, method), row in measured.items():
        moved = measured.get((size, "redis"))
        if method != "base" or moved is None:
            continue
        job = _pipeline(row)
        layer = np.mean(row["F"][1:-1]) * len(row["F"]) / row["L"]
        counts = [round(time / layer) for time in moved["F"][:-1]]
        counts.append(row["L"] - sum(counts))
        each = [row["L"] // len(row["F"])] * len(row["F"])
        change = f"layers={','.join(map(str, each))}->{','.join(map(str, counts))}"
        right = 100 * moved["iter_s"] / row["iter_s"]
        name = f"vocabulary-{size // 1000}k"
        making = (lambda folder, job=job: _capture(job, folder / "capture"),)
        asked = ("whatif", "capture", "--set", change, "--format", "json")
        check = Check("step with layers moved, % of before", right, _predicted, 3.0)
        cases.append(Case(f"{name}-moved", TABLES, asked, (check,), making))
        head = len(row["F"]) - 1
        gain = Check(
            f"{GAIN} stage {head}", 100 * job.gain(job.faults[0]),
            lambda r, head=head: cause(r, STAGE, "removal_gain_frac", stage=head), NEAR_GAIN,
        )  # fmt: skip
        checks = (first_fault(f"stage_imbalance stage {head}"), gain)
        asked = ("diagnose", "capture", "--format", "json")
        cases.append(Case(f"{name}-head", TABLES, asked, checks, making))
    return cases


def _predicted(reply: Reply) -> float:
    return 100 * reply.data["predicted_step_time_ns"] / reply.data["step_time_ns"]


def _pipeline(row: dict[str, Any]) -> Job:
    """Return a 1F1B job with the measured passes of each stage."""
    shape = Shape(pp=len(row["F"]), dp=1, microbatches=row["B"], steps=3)
    centres = 1e-6 * np.array([row["F"], row["Bw"]], float)
    return _plain(shape, centres, (HeavyStage(shape.pp - 1),))


def _plain(shape: Shape, centres: np.ndarray, faults: tuple[HeavyStage, ...] = ()) -> Job:
    """Return a job with passes of a length, short transfers and an optimizer of 10 ms."""
    jitter, wires, gaps = [], [], []
    for stage in range(shape.pp):
        items = program(shape, stage)
        sizes = (len(items), shape.dp, shape.steps)
        wire = np.full(sizes, 1e-4)
        wire[[item.is_pass for item in items]] = 0
        wire[[item.name == OPTIMIZER for item in items]] = 0.01
        jitter.append(np.ones(sizes)), wires.append(wire), gaps.append(np.full(sizes, 5e-6))
    return Job(shape, centres, tuple(jitter), tuple(wires), tuple(gaps), faults)


def _repeated(rows: Sequence[dict[str, Any]], pairs: int = 3) -> list[Case]:
    """Return pairs of runs of one setting: what differs between them is no change of the job."""
    alike: dict[str, dict[str, list[list[float]]]] = {}
    for row in rows:
        systems = alike.setdefault(row["bench"], {})
        systems.setdefault(row["system"], []).append(row["step_s"])
    cases = []
    for bench, systems in alike.items():
        runs = max(systems.values(), key=len)
        for number in range(min(pairs, len(runs) // 2)):
            two = runs[2 * number : 2 * number + 2]
            making = tuple(
                (lambda folder, run=run, name=name: _capture(_steps(run), folder / name))
                for run, name in zip(two, ("before", "after"), strict=True)
            )
            asked = ("compare", "before", "after", "--format", "json")
            check = Check("|change| / its stated error", 0.0, _significance, 3.0)
            cases.append(Case(f"repeated-{bench}-{number}", TABLES, asked, (check,), making))
    return cases


def _significance(reply: Reply) -> float:
    return abs(reply.data["change_ns"]) / reply.data["error_ns"]


def _steps(lengths_s: Sequence[float]) -> Job:
    """Return a job of one rank whose steps take so long."""
    shape = Shape(pp=1, dp=1, microbatches=1, steps=len(lengths_s))
    job = _plain(shape, np.array([[0.3], [0.6]]))
    job.jitter[0][[item.is_pass for item in program(shape, 0)]] *= np.array(lengths_s) / 0.9
    return job


def _capture(job: Job, folder: Path) -> None:
    if not folder.is_dir():
        write(job, Recording(), folder, np.random.default_rng(0))
