"""How far `meshscope balance` is from pipelines that were measured before and after layers moved.

A 4B model on 8 A100, PP8, 128 microbatches (sail-sg/VocabularyParallelism), in ../shared/tables or where
MESHSCOPE_TABLES points. Mean stage times are all that is known. Messages and the optimizer are added by
their bytes and the data sheet of the device, none fitted. The gain is predicted from the run before the move alone, by what `balance
--layers 4,4,4,4,4,4,4,4 --try …` computes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from meshscope.analyze.explain.balance.proposals import GROWN
from meshscope.analyze.explain.whatif.pipeline import Pipeline
from meshscope.analyze.explain.whatif.redesign import PresentPipeline
from meshscope.analyze.tables.arrays import FloatArray
from meshscope.probe.schema.terms import ScheduleKind

PROJECT = Path(__file__).resolve().parent.parent
TABLES = Path(os.environ.get("MESHSCOPE_TABLES") or PROJECT.parent / "shared" / "tables")
FILE = "vocab_parallel_s2048.json"
_NS_PER_US = 1000
HIDDEN, SEQUENCE = 3072, 2048
LINK_BYTES_PER_S, MEMORY_BYTES_PER_S = 300e9, 2.0e12
"""A100: NVLink in one direction, HBM2e."""
ADAM_BYTES = 42
"""A parameter: fp32 gradient read for the norm and by Adam, and zeroed (12); master and two moments read and
written (24); master read again and bf16 weight written (6)."""


def present(row: dict[str, Any]) -> PresentPipeline:
    """Return the pipeline of a row, as a run of one step would give it."""
    forward, backward = (np.array(row[name]) * _NS_PER_US for name in ("F", "Bw"))
    stages, microbatches = len(forward), row["B"]
    message_ns = 2 * SEQUENCE * HIDDEN / LINK_BYTES_PER_S * 1e9
    costs = np.stack([forward, backward / 2, backward / 2])
    pipeline = Pipeline(
        schedule=ScheduleKind.ONE_F_ONE_B,
        ranks=stages,
        chunks=1,
        microbatches=microbatches,
        pass_ns=np.broadcast_to(costs[:, :, None, None], (3, stages, 1, microbatches)).copy(),
        head_ns=np.zeros((stages, 1, 1)),
        tail_ns=_optimizer_ns(row)[:, None, None],
        message_ns=np.full((2, stages, 1), message_ns),
        replicas_meet=False,
        stages_meet=True,
        skew_share=0.0,
    )
    return PresentPipeline(pipeline=pipeline, centre_ns=costs, holders=np.arange(stages))


def _optimizer_ns(row: dict[str, Any]) -> FloatArray:
    """Return what Adam takes on every stage: it moves its bytes at the speed of the memory."""
    parameters = 12.0 * HIDDEN**2 * np.array(layers_of(row))
    parameters[[0, -1]] += row["v"] * HIDDEN
    return np.asarray(parameters * ADAM_BYTES / MEMORY_BYTES_PER_S * 1e9)


def layers_of(row: dict[str, Any]) -> list[int]:
    """Return the layers of the stages: what the last one has less is spread from the back."""
    even = row["L"] // len(row["F"])
    layers = [even] * len(row["F"])
    layers[-1] = row["last"]
    for moved in range(even - row["last"]):
        layers[-2 - moved] += 1
    return layers


def replay_errors() -> dict[str, float]:
    """Return the error of the replayed step of each measured row."""
    return {
        row["name"]: present(row).pipeline.simulated(1).mean_ns / 1e9 / row["iter_s"] - 1
        for row in _rows()
        if row["method"] in ("base", "redis")
    }


def gains() -> list[tuple[str, float, float, float, float]]:
    """Return name, predicted gain, its low and high end, and the measured gain of each pair."""
    rows = _rows()
    found = []
    for after in rows:
        if after["method"] != "redis":
            continue
        before = next(r for r in rows if r["method"] == "base" and r["v"] == after["v"])
        run, now = present(before), layers_of(before)
        step = run.pipeline.simulated(1).mean_ns
        low, centre, high = (_gain(run, now, layers_of(after), step, g) for g in (GROWN, 0, -GROWN))
        margin = abs(step / 1e9 / before["iter_s"] - 1) * (1 - centre)
        ends = min(low, centre) - margin, max(high, centre) + margin
        found.append((after["name"], centre, *ends, 1 - after["iter_s"] / before["iter_s"]))
    return found


def _gain(
    run: PresentPipeline, now: list[int], then: list[int], step_ns: float, grown: float
) -> float:
    return 1.0 - run.with_layers(now, then, grown).simulated(1).mean_ns / step_ns


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((TABLES / FILE).read_text())
    return rows


def main() -> int:
    """Print the errors; nothing to print is no failure."""
    if not (TABLES / FILE).is_file():
        print(f"no {FILE} in {TABLES}: MESHSCOPE_TABLES names another folder")
        return 0
    errors: FloatArray = np.abs(list(replay_errors().values()))
    print(f"replay, {len(errors)} runs: mean error {errors.mean():.2%}, largest {errors.max():.2%}")
    found = gains()
    for name, centre, low, high, measured in found:
        print(f"{name}: gain {centre:.1%} ({low:.1%} to {high:.1%}), measured {measured:.1%}")
    off = [abs(one[1] - one[4]) for one in found]
    held = sum(one[2] <= one[4] <= one[3] for one in found)
    print(
        f"gain: mean error {100 * np.mean(off):.2f} points; interval holds in {held} of {len(off)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
