"""What a run that records some windows of steps loses, by its own steps; prints figures, asserts none.

    python bench/sampled_run.py 1600

Two ranks with a pipeline train under ``meshscope run`` as a user would start them, but for one thing:
what the hooks take is judged from the first steps on. The mean step of each window that was recorded
is compared with that of the windows beside it, which were not. In those the call that sees where a
step ends stays; ``hook_cost`` prints what it takes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from meshscope.probe.doctor.statistics import paired_effect, percent
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.manifest import RECORDING_KEY
from meshscope.probe.schema.sampling import LEAD_STEPS, WINDOW_STEPS

AT_ONCE = {"MESHSCOPE_FULL_FIRST_STEPS": "0", "MESHSCOPE_COST_WINDOW_STEPS": str(WINDOW_STEPS)}
SETTINGS = {
    "layout.tp": 1,
    "layout.pp": 2,
    "layout.dp": 1,
    "schedule.microbatches": 4,
    "train.global_batch": 8,
    "pace.layer_ms": 10,
}


def train(folder, steps):
    """Train under the probe; return the run."""
    settings = {**SETTINGS, "train.steps": steps}
    command = [
        *(sys.executable, "-m", "meshscope", "run", "--runs", str(folder), "--run-id", "run", "--"),
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
        *("-m", "meshscope.reference_trainer", "--preset", "tiny", "--out", str(folder / "out")),
        *(word for name, value in settings.items() for word in ("--set", f"{name}={value}")),
    ]
    environment = {**os.environ, **AT_ONCE, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return read_run(folder / "run")


def windows(capture):
    """Return the mean steps of the windows recorded and beside them in ns, and the share recorded."""
    steps = capture.tables["step"].to_pandas()
    stretches = capture.rank_manifests[0]["annotations"][RECORDING_KEY]
    begins, one_in = zip(*((one["step"], one["one_in"]) for one in stretches), strict=True)
    by_step = steps.groupby("step")["dur_ns"].mean()
    window = (by_step.index.to_numpy() + LEAD_STEPS) // WINDOW_STEPS
    means = by_step.groupby(window).agg(["mean", "size"])
    means = means.loc[means["size"] == WINDOW_STEPS, "mean"]
    first = means.index.to_numpy() * WINDOW_STEPS - LEAD_STEPS
    of_windows = np.asarray(one_in)[np.searchsorted(begins, first, side="right") - 1]
    is_recorded = (means.index.to_numpy() % of_windows == 0) & (of_windows > 1)
    is_inner = is_recorded & (np.roll(of_windows, 1) > 1)
    is_inner[[0, -1]] = False
    at, of_step = np.flatnonzero(is_inner), means.to_numpy()
    beside = (of_step[at - 1] + of_step[at + 1]) / 2
    return of_step[at], beside, is_recorded[of_windows > 1].mean()


def main():
    """Train, compare and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int, nargs="?", default=1600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        recorded_ns, beside_ns, share = windows(train(Path(name), options.steps))
    effect = paired_effect(recorded_ns, beside_ns)
    bounds = (effect.median_frac, effect.low_frac, effect.high_frac)
    print(f"step {np.median(beside_ns) / 1e6:.1f} ms, {share:.0%} of the windows recorded")
    for what, part in (("a recorded step", 1.0), ("the mean step", share)):
        median, low, high = (percent(bound * part) for bound in bounds)
        print(f"{what:16} {median} ({low} to {high}, 95 % of {effect.pairs} windows)")


if __name__ == "__main__":
    main()
