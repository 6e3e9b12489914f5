"""The gate on jobs that really ran: each change of the program fails with its own explanation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.recorded_training import recorded_run
from torch import Tensor
from typer.testing import CliRunner

from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    PaceConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.fault_plan import parse_fault
from meshscope.reference_trainer.parallel.tensor_parallel import RowLinear

pytestmark = [pytest.mark.distributed, pytest.mark.alone]

BASE_RUNS = 5
STEPS = 10
MARGIN = "0.2"
"""Ranks share two cores here with whatever else runs: their noise is no cluster's."""
CONFIG = TrainerConfig(
    layout=ParallelLayout(tp=2, pp=2),
    model=ModelConfig(layers=2, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16),
    schedule=ScheduleConfig(kind="1f1b", microbatches=4),
    train=TrainConfig(steps=STEPS, global_batch=8),
    pace=PaceConfig(layer_ms=15.0),
)
SLOW_LAYER = "heavy_stage:part=layers,stage=1,delay_ms=30,seed=1"


def gate(*words: object) -> dict[str, Any]:
    """Return the JSON of a gate, with its exit code."""
    done = CliRunner().invoke(app, ["gate", *map(str, words)], catch_exceptions=False)
    return {**json.loads(done.stdout), "exit_code": done.exit_code}


def add_an_all_reduce() -> None:
    """Have each row-parallel layer sum its output a second time, for nothing."""
    plain = RowLinear.forward

    def forward(self: RowLinear, hidden: Tensor) -> Tensor:
        total = plain(self, hidden)
        self._split.comm.all_reduce(total.detach().clone(), self._split.group).wait()
        return total

    RowLinear.forward = forward  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that trains and returns the run directory."""

    def run(config: TrainerConfig, change: Callable[[], None] | None = None) -> Path:
        out = tmp_path_factory.mktemp("job")
        found = recorded_run(config, out, change)
        assert found.codes == [0] * config.layout.world_size
        return out / "run"

    return run


@pytest.fixture(scope="module")
def runs(train: Callable[..., Path]) -> list[Path]:
    """Return runs of one program."""
    return [train(CONFIG) for _ in range(BASE_RUNS)]


@pytest.fixture(scope="module")
def base(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the baseline of all of them."""
    path = tmp_path_factory.mktemp("base") / "base.json"
    words = ["gate", "baseline", *map(str, runs), "-o", str(path)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    return path


def judged(path: Path, base: Path) -> dict[str, Any]:
    """Return what the gate says of one run."""
    return gate(path, "--baseline", base, "--margin", MARGIN, "--format", "json")


def failed(found: dict[str, Any]) -> set[str]:
    """Return the metrics that failed."""
    return {check["metric"] for check in found["checks"] if check["verdict"] == "fail"}


@pytest.mark.sampled(keep=())
def test_the_same_program_passes_each_time(runs: list[Path], tmp_path: Path) -> None:
    """A gate that stops unchanged programs is switched off."""
    for at, path in enumerate(runs):
        others = tmp_path / f"base{at}.json"
        rest = [str(run) for run in runs if run != path]
        CliRunner().invoke(app, ["gate", "baseline", *rest, "-o", str(others)])
        found = judged(path, others)
        assert (found["verdict"], found["exit_code"]) == ("pass", 0), found["why"]
        assert not failed(found)


def test_an_all_reduce_more_in_each_layer(train: Callable[..., Path], base: Path) -> None:
    """The most common regression of tensor parallelism would pass, as it costs little on a small job."""
    found = judged(train(CONFIG, add_an_all_reduce), base)
    assert (found["verdict"], found["exit_code"]) == ("fail", 1)
    # 2 layers with 2 row-parallel layers each, on 2 ranks, in 4 microbatches.
    assert "TP all_reduce per step" in found["why"]
    assert "32 more per step over all ranks" in found["why"]
    assert "count.passes.forward" not in failed(found)


def test_fewer_microbatches(train: Callable[..., Path], base: Path) -> None:
    """Larger microbatches in a larger bubble would look like another job, or like a gain."""
    found = judged(
        train(replace(CONFIG, schedule=ScheduleConfig(kind="1f1b", microbatches=2))), base
    )
    assert (found["verdict"], found["exit_code"]) == ("fail", 1)
    assert "passes per step: 16 → 8: 8 fewer" in found["why"]


def test_a_slow_layer(train: Callable[..., Path], base: Path) -> None:
    """The step would be called slower, without the stage that is to blame."""
    found = judged(train(replace(CONFIG, faults=(parse_fault(SLOW_LAYER),))), base)
    assert (found["verdict"], found["exit_code"]) == ("fail", 1)
    assert "median step time" in found["why"]
    assert not {name for name in failed(found) if name.startswith("count.")}
    assert any(note.startswith("Stage 1 computes") for note in found["notes"])


def test_another_mesh_is_not_compared(train: Callable[..., Path], base: Path) -> None:
    """Times of another job would pass or fail this one."""
    found = judged(train(replace(CONFIG, layout=ParallelLayout(tp=1, pp=2, dp=2))), base)
    assert (found["verdict"], found["exit_code"]) == ("incomparable", 2)
    assert {"tp", "dp"} <= set(found["setup"])
    assert "TP" in found["why"] or "tp" in found["why"]


def test_base_and_candidate_in_turn(tmp_path: Path) -> None:
    """`gate ab` would compare other runs than it made, or print the jobs' output into its JSON."""
    script = tmp_path / "job.py"
    script.write_text(
        "import sys, time\nfrom meshscope import probe\nprobe.attach()\n"
        "for _ in range(12):\n    time.sleep(float(sys.argv[1]))\n    probe.step()\nprint('done')\n"
    )
    commands = [f"{sys.executable} {script} {seconds}" for seconds in (0.02, 0.2)]
    words = ("--base", commands[0], "--cand", commands[1], "--runs", 2, "--margin", MARGIN)
    found = gate("ab", *words, "--runs-dir", tmp_path / "runs", "--format", "json")
    assert (found["verdict"], found["exit_code"]) == ("fail", 1)
    assert found["checks"][0]["ratio"] > 5
    assert (found["pairs"]["run"], found["pairs"]["planned"]) == (2, 2)
    assert [len(side) for side in found["runs"]] == [2, 2]
    assert all(Path(path).is_dir() for side in found["runs"] for path in side)
