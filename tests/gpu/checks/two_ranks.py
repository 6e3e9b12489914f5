"""Two ranks of the reference trainer on one device, over gloo, under the probe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from meshscope.probe.launching.launch import run
from meshscope.probe.schema.terms import SpanKind

from .capture import no_errors, read_rank
from .context import Context, same_losses

_STEPS = 8
_TRAINER = ("-m", "meshscope.reference_trainer", "--preset", "tiny")


def two_ranks(context: Context) -> None:
    """Train a pipeline of two stages; look at what each rank recorded.

    Raises:
        NotHere: A package of the trainer is missing.
    """
    context.need_packages("typer", "msgspec")
    if not _without_probe(context):
        return
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone",
              "--nproc_per_node", "2", *_arguments(context, "watched")]  # fmt: skip
    code = run(launch, context.work / "runs", "two")
    context.expect(code == 0, f"the job ended with {code}")
    if code:
        return
    bare, watched = (_losses(context.work / name) for name in ("bare", "watched"))
    same_losses(context, "trainer", bare, watched)
    for rank in range(2):
        _look(context, rank)


def _arguments(context: Context, out: str) -> list[str]:
    settings = ("layout.pp=2", f"device.kind={context.device}", "device.backend=gloo",
                "model.layers=4", f"train.steps={_STEPS}")  # fmt: skip
    flags = [part for setting in settings for part in ("--set", setting)]
    return [*_TRAINER, "--out", str(context.work / out), *flags]


def _without_probe(context: Context) -> bool:
    """Train without the probe; return whether that is possible here."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc_per_node", "2", *_arguments(context, "bare")]  # fmt: skip
    environment = {**os.environ, "MESHSCOPE_DISABLE": "1"}
    done = subprocess.run(command, check=False, env=environment)
    context.expect(done.returncode == 0, f"without the probe the job ended with {done.returncode}")
    return done.returncode == 0


def _losses(folder: Path) -> list[float]:
    found: list[float] = json.loads((folder / "losses.json").read_text(encoding="utf-8"))["loss"]
    return found


def _look(context: Context, rank: int) -> None:
    """Tell what a rank recorded, and how much of a stage's time the device worked."""
    capture = read_rank(context.work / "runs" / "two", rank)
    no_errors(context, capture)
    for name in ("step", "span", "p2p", "collective", "device_time"):
        context.figure(f"rank{rank}_{name}_records", capture.count(name))
    context.expect(capture.count("step") >= _STEPS, f"rank {rank}: too few steps")
    context.expect(capture.count("p2p") > 0, f"rank {rank}: no message between the stages")
    spans = capture.device_spans(SpanKind.FORWARD)
    context.expect(
        context.device != "cuda" or len(spans["start_ns"]) > 0,
        f"rank {rank}: no forward was timed on the device",
    )
    if len(spans["start_ns"]):
        share = np.median(spans["device_dur_ns"] / spans["dur_ns"])
        context.figure(f"rank{rank}_forward_device_share", round(float(share), 3))
