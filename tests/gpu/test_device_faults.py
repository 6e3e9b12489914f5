"""Faults on a GPU: extra work is done by the device, and links over gloo are slow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshscope.reference_trainer.faults.ground_truth import truth_path

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

BASE = (
    *("model.layers=4", "model.vocab=64", "model.seq_len=64"),
    *("train.global_batch=8", "train.steps=8", "device.kind=cuda", "device.backend=gloo"),
)
MS = 1e6


def trained(
    out: Path, ranks: int, *overrides: str, faults: tuple[str, ...] = ()
) -> tuple[list[float], list[dict[str, Any]]]:
    """Return losses and applied faults of a run on the GPU."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    trainer = ["-m", "meshscope.reference_trainer", "--preset", "tiny", "--out", str(out)]
    flags = [part for setting in (*BASE, *overrides) for part in ("--set", setting)]
    flags += [part for fault in faults for part in ("--fault", f"{fault},seed=1")]
    subprocess.run([sys.executable, *launch, *trainer, *flags], check=True, timeout=300)
    losses = json.loads((out / "losses.json").read_text())["loss"]
    lines = [
        json.loads(line) | {"rank": rank}
        for rank in range(ranks)
        for line in truth_path(out, rank).read_text(encoding="utf-8").splitlines()
    ]
    return losses, [line for line in lines if line["record"] == "fault"]


def test_extra_work_is_done_by_the_device_for_the_wanted_time(tmp_path: Path) -> None:
    """Fails if products take another time than asked for, or change what is learned."""
    settings = ("layout.pp=1", "data.documents=long_tail")
    faults = (
        "slow_rank:rank=0,mode=compute,delay_ms=20,start=3,stop=4",
        "heavy_stage:part=head,delay_ms=10,start=4,stop=5",
        "sequence_imbalance:delay_ms=10,start=5",
    )
    clean, nothing = trained(tmp_path / "clean", 1, *settings)
    slow, found = trained(tmp_path / "slow", 1, *settings, faults=faults)
    assert slow == clean
    assert not nothing
    assert {one["kind"] for one in found} == {"slow_rank", "heavy_stage", "sequence_imbalance"}
    for one in found:
        took_ns = one["end_ns"] - one["start_ns"]
        assert took_ns == pytest.approx(one["requested_ns"], rel=0.5, abs=0.2 * MS)


@pytest.mark.parametrize("axis", ["tp", "pp", "dp"])
def test_links_of_ranks_that_share_a_gpu_are_slow(tmp_path: Path, axis: str) -> None:
    """Fails if an axis of TP2 x PP2 x DP2 on one GPU escapes a slow link, or learns otherwise."""
    mesh = ("layout.tp=2", "layout.pp=2", "layout.dp=2")
    fault = f"slow_link:rank=0,axis={axis},delay_ms=20,start=3,stop=4"
    alone, _ = trained(tmp_path / "one", 1, "layout.pp=1")
    losses, found = trained(tmp_path / "eight", 8, *mesh, faults=(fault,))
    assert losses == pytest.approx(alone, abs=1e-5)
    other = {"tp": 1, "dp": 2, "pp": 4}[axis]
    assert {one["rank"] for one in found} == {0, other}
    assert all(one["end_ns"] - one["start_ns"] >= 20 * MS for one in found)


def test_tokens_and_experts_of_ranks_that_share_a_gpu_have_slow_links(tmp_path: Path) -> None:
    """Fails if a ring or an exchange of experts through host memory passes a slow link."""
    mesh = ("layout.pp=1", "layout.dp=2", "layout.cp=2", "layout.ep=2", "moe.experts=4")
    faults = tuple(
        f"slow_link:rank=0,axis={axis},delay_ms=10,start={step},stop={step + 1}"
        for step, axis in enumerate(("cp", "ep", "dp"), start=3)
    )
    _, found = trained(tmp_path, 4, *mesh, faults=faults)
    assert {one["axis"] for one in found} == {"cp", "ep", "dp"}
    assert all(one["end_ns"] - one["start_ns"] >= 10 * MS for one in found)
