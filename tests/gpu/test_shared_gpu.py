"""Several ranks with real CUDA kernels on one GPU, over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging.version import Version

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

MODEL = ("model.layers=4", "model.vocab=64", "train.global_batch=8", "train.steps=5")


def losses(out: Path, ranks: int, *overrides: str) -> list[float]:
    """Return the losses of a run on the GPU, and check that sharing is announced."""
    settings = (*MODEL, "device.kind=cuda", "device.backend=gloo", *overrides)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    trainer = ["-m", "meshscope.reference_trainer", "--preset", "tiny", "--out", str(out)]
    flags = [part for setting in settings for part in ("--set", setting)]
    result = subprocess.run(
        [sys.executable, *launch, *trainer, *flags],
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    shared = ranks > torch.cuda.device_count()
    assert (f"{ranks} ranks of this host share" in result.stderr) == shared
    found: list[float] = json.loads((out / "losses.json").read_text())["loss"]
    return found


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("tensor.sequence_parallel=true", "data_parallel.zero=1"),
        pytest.param(
            ("schedule.kind=zb-v", "layout.vpp=2", "data_parallel.zero=2"),
            marks=pytest.mark.skipif(
                Version(torch.__version__) < Version("2.13"),
                reason="split backwards need torch 2.13",
            ),
        ),
    ],
)
def test_eight_ranks_on_one_gpu_train_the_model_of_one(
    tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """Fails if TP2 x PP2 x DP2 over gloo on one GPU computes something else than one process."""
    alone = losses(tmp_path / "one", 1, "layout.pp=1")
    mesh = ("layout.tp=2", "layout.pp=2", "layout.dp=2")
    assert losses(tmp_path / "eight", 8, *mesh, *overrides) == pytest.approx(alone, abs=1e-5)
