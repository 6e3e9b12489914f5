"""``meshscope doctor --overhead``: one job that compares itself with and without the probe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..comparison import is_watched
from ..launch import run
from ..schema.errors import ConfigError
from ..schema.manifest import rank_directories
from ..schema.rundir import RunCapture, read_run
from .statistics import LEAST_PAIRS, Effect, paired_effect

_VARIABLES = {"MESHSCOPE_COST_BUDGET_PPM": "0"}
_FULL_RING = """
import os, pathlib, sys
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = rss()
from meshscope.probe.recorder import Recorder
recorder = Recorder(pathlib.Path(sys.argv[1]), 0)
for step in range(65536):
    recorder.record_step(step, 1, 2)
recorder.flush()
print(rss() - before)
recorder.close()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What a comparison in one job found."""

    run: str
    """The run directory."""
    ranks: int
    window_steps: int
    effect: Effect
    load: tuple[float, float]
    """Load average of this machine before and after."""
    cpus: int
    step_time_ns: float
    """Median without the probe."""
    per_call_ns: dict[str, int]
    """Mean time of a call by kind, the largest of all ranks, by the hooks' own measure."""
    communication_per_step: float
    """Communication calls of a rank."""
    hop_frac: float
    """Share of the step that the bypass itself takes, which both kinds of windows have."""
    rss_bytes: int | None
    """Memory of a recorder with a full ring in a process of its own."""

    def to_json(self) -> dict[str, Any]:
        """Return it with the effect's figures beside the others."""
        found = asdict(self)
        return {**found.pop("effect"), **found}


def measure_overhead(
    command: Sequence[str], runs_dir: Path, window_steps: int
) -> tuple[Overhead | None, int]:
    """Run a command under the probe, and compare its windows with and without.

    Returns:
        What was found, None where the command failed; and its exit code.

    Raises:
        ConfigError: There is no command, or the job was too short.
    """
    before = os.getloadavg()[0]
    known = {path.name for path in runs_dir.iterdir()} if runs_dir.is_dir() else set()
    variables = {"MESHSCOPE_COMPARE_WINDOW_STEPS": str(window_steps), **_VARIABLES}
    code = run(command, runs_dir, environment={**os.environ, **variables})
    new = [path for path in runs_dir.iterdir() if path.name not in known]
    if code or len(new) != 1:
        return None, code
    load = (before, os.getloadavg()[0])
    return overhead_of(read_run(new[0]), window_steps, load, rss_bytes=_recorder_rss()), 0


def overhead_of(
    capture: RunCapture, window_steps: int, load: tuple[float, float], *, rss_bytes: int | None
) -> Overhead:
    """Return what the windows of a comparison tell.

    Args:
        capture: The run, which was recorded with ``compare_window_steps``.
        window_steps: Steps of its windows.
        load: Load average before and after.
        rss_bytes: Memory of a recorder.

    Raises:
        ConfigError: It has too few pairs of whole windows.
    """
    windows = window_times(capture, window_steps)
    try:
        effect = paired_effect(windows["watched"].to_numpy(), windows["without"].to_numpy())
    except ValueError as error:
        steps = 2 * window_steps * (LEAST_PAIRS + 1)
        raise ConfigError(
            f"the job is too short for a comparison: {error}",
            where=str(capture.path),
            remedy=f"Run at least {steps} steps, or make windows shorter with --window-steps",
        ) from error
    step_ns = float(windows["without"].median())
    costs = [_annotation(manifest, "cost") for manifest in capture.rank_manifests.values()]
    calls = _communication_per_step(capture, window_steps)
    hop_ns = max((int(cost.get("hop_ns") or 0) for cost in costs), default=0)
    return Overhead(
        run=str(capture.path),
        ranks=len(rank_directories(capture.path)),
        window_steps=window_steps,
        effect=effect,
        load=load,
        cpus=os.cpu_count() or 0,
        step_time_ns=step_ns,
        per_call_ns=_largest([cost.get("per_call_ns") or {} for cost in costs]),
        communication_per_step=calls,
        hop_frac=calls * hop_ns / step_ns,
        rss_bytes=rss_bytes,
    )


def window_times(capture: RunCapture, window_steps: int) -> pd.DataFrame:
    """Return one row a pair of windows: the median step time with the probe and without, ns.

    A step counts as long as it took in the mean of all ranks. The first step of each
    window is left out, and the first pair, which holds one-time work; so are pairs that
    are not whole.
    """
    steps = capture.tables["step"].to_pandas()
    ranks = steps["rank"].nunique()
    by_step = steps.groupby("step")["dur_ns"].agg(["mean", "size"])
    by_step = by_step[by_step["size"] == ranks].reset_index()
    window = by_step["step"] // window_steps
    whole = by_step.groupby(window)["step"].transform("size") == window_steps
    kept = by_step[whole & (by_step["step"] % window_steps != 0) & (window >= 2)]
    run_id = capture.path.name
    watched = kept["step"].map(lambda step: is_watched(run_id, step, window_steps))
    side = watched.map({True: "watched", False: "without"})
    pair = kept["step"] // (2 * window_steps)
    medians = kept["mean"].astype(np.float64).groupby([pair, side]).median()
    times: pd.DataFrame = medians.unstack()
    return times.reindex(columns=["watched", "without"]).dropna()


def _communication_per_step(capture: RunCapture, window_steps: int) -> float:
    """Return how often a rank communicates in a step, from the steps that were recorded."""
    found = []
    for name in ("collective", "p2p"):
        rows = capture.tables[name].to_pandas()[["rank", "step"]]
        run_id = capture.path.name
        found.append(rows[[is_watched(run_id, int(s), window_steps) for s in rows["step"]]])
    rows = pd.concat(found)
    return float(rows.groupby(["rank", "step"]).size().median()) if len(rows) else 0.0


def _annotation(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = (manifest.get("annotations") or {}).get(name)
    return found if isinstance(found, dict) else {}


def _largest(parts: Sequence[Mapping[str, int | None]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            if value is not None:
                found[name] = max(found.get(name, 0), value)
    return found


def _recorder_rss() -> int | None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _FULL_RING, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else None
