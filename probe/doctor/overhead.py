"""``meshscope doctor --overhead``: one job that compares itself with and without the probe.

In windows without it every hook is out that steps can do without. What stays is measured
apart and added, so that the result is what a user pays against a job without the probe: the
call that sees where steps end, and the counter of steps that Kineto's client puts beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from ..cost import COST_OVER_SEEN
from ..deep.kineto_fabric import DAEMON_VARIABLE, DIRECTORY_VARIABLE
from ..launching.launch import run
from ..reader.run import RunCapture, read_run
from ..schema.errors import ConfigError, MeshscopeError
from ..schema.manifest import (
    MANIFEST_NAME,
    RECORDING_KEY,
    host_directories,
    rank_directories,
    read_json,
)
from ..schema.message import message
from ..schema.sampling import least_one_in
from ..session.comparison import is_watched
from ..settings.config import BUDGET_PPM
from .statistics import LEAST_PAIRS, Effect, paired_effect

_VARIABLES = {"MESHSCOPE_COST_BUDGET_PPM": "0"}
_FULL_RING = """
import contextlib, os, pathlib, sys
with contextlib.suppress(ImportError):
    import torch
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = rss()
from meshscope.probe.recording.recorder import Recorder
recorder = Recorder(pathlib.Path(sys.argv[1]), 0)
for step in range(65536):
    recorder.record_step(step, 1, 2)
recorder.flush()
print(rss() - before)
recorder.close()
"""

_KINETO_COUNTER = """
import time, torch.profiler
from torch.optim import optimizer
hooks = list(optimizer._global_optimizer_post_hooks.values())
def mean_ns(steps=1000):
    start_ns = time.thread_time_ns()
    for _ in range(steps):
        for hook in hooks:
            hook(None, (), {})
    return (time.thread_time_ns() - start_ns) // steps
print(min(mean_ns() for _ in range(5)))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What a comparison in one job found."""

    run: str
    """The run directory."""
    ranks: int
    window_steps: int
    effect: Effect
    """What a step costs more than without any probe; what stays in windows without it is added."""
    left_ns: dict[str, int | None]
    """That, of a step, by what it is; None for what is not known, and then not added."""
    left_frac: float
    """The same together, as a share of the step."""
    own_frac: float | None
    """The cost by the hooks' own measure, the largest of all ranks, by which a run decides how much it
    records; None where they did not measure themselves."""
    one_in: int | None
    """Of so many windows of steps a run would record one for that; None where it would record less
    in all of them, or where ``own_frac`` is not known."""
    sampled_frac: float | None
    """What the mean step costs more then, reckoned from ``effect``."""
    threads_frac: float | None
    """Share of a core that the probe's own threads of a rank take, in both kinds of windows."""
    agent_frac: float | None
    """Share of a core that the agent of a node takes, in both kinds of windows."""
    load: tuple[float, float]
    """Load average of this machine before and after."""
    cpus: int
    step_time_ns: float
    """Median without the probe."""
    per_call_ns: dict[str, int]
    """Mean time of a call by kind, the largest of all ranks, by the hooks' own measure."""
    communication_per_step: float
    """Communication calls of a rank."""
    rss_bytes: int | None
    """What a process with torch has more in memory for a recorder with a full ring."""

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
    # With the agent and Kineto's client, as `meshscope run` starts a job.
    code = run(command, runs_dir, environment={**os.environ, **variables}, agent_options=())
    new = [path for path in runs_dir.iterdir() if path.name not in known]
    if code or len(new) != 1:
        return None, code
    load = (before, os.getloadavg()[0])
    capture = read_run(new[0])
    found = overhead_of(
        capture, window_steps, load, rss_bytes=_recorder_rss(), kineto_ns=_kineto_ns()
    )
    return found, 0


def overhead_of(
    capture: RunCapture,
    window_steps: int,
    load: tuple[float, float],
    *,
    rss_bytes: int | None,
    kineto_ns: int | None,
) -> Overhead:
    """Return what the windows of a comparison tell.

    Args:
        capture: The run, which was recorded with ``compare_window_steps``.
        window_steps: Steps of its windows.
        load: Load average before and after.
        rss_bytes: Memory of a recorder.
        kineto_ns: What the counter of Kineto's client takes of a step; None if it is not known.

    Raises:
        ConfigError: It has too few pairs of whole windows.
    """
    windows = window_times(capture, window_steps)
    effect = _effect(windows, capture, window_steps)
    step_ns = float(windows["without"].median())
    costs = [_annotation(manifest, "cost") for manifest in capture.rank_manifests.values()]
    left_ns = {
        "border of the step": _largest(costs).get("bare_border_ns"),
        "step counter of Kineto's client": kineto_ns,
    }
    left_frac = sum(taken or 0 for taken in left_ns.values()) / step_ns
    own_frac = _own_frac(capture, window_steps, step_ns)
    one_in = None if own_frac is None else least_one_in(own_frac * 1e6 / BUDGET_PPM)
    return Overhead(
        run=str(capture.path),
        ranks=len(rank_directories(capture.path)),
        window_steps=window_steps,
        effect=replace(
            effect,
            median_frac=effect.median_frac + left_frac,
            low_frac=effect.low_frac + left_frac,
            high_frac=effect.high_frac + left_frac,
        ),
        left_ns=left_ns,
        left_frac=left_frac,
        own_frac=own_frac,
        one_in=one_in,
        sampled_frac=None if one_in is None else left_frac + effect.median_frac / one_in,
        threads_frac=_threads_frac(capture),
        agent_frac=_agent_frac(capture.path),
        load=load,
        cpus=os.cpu_count() or 0,
        step_time_ns=step_ns,
        per_call_ns=_largest([cost.get("per_call_ns") or {} for cost in costs]),
        communication_per_step=_communication_per_step(capture, window_steps),
        rss_bytes=rss_bytes,
    )


def _effect(windows: pd.DataFrame, capture: RunCapture, window_steps: int) -> Effect:
    try:
        return paired_effect(windows["watched"].to_numpy(), windows["without"].to_numpy())
    except ValueError as error:
        steps = 2 * window_steps * (LEAST_PAIRS + 1)
        raise ConfigError(
            message("refused.job_too_short", error=error),
            where=str(capture.path),
            remedy=message("advice.more_steps_or_shorter_windows", steps=steps),
        ) from error


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


def _own_frac(capture: RunCapture, window_steps: int, step_ns: float) -> float | None:
    """Return what the hooks of a rank say that they took of a step with the probe, at most."""
    found = []
    for rank, manifest in capture.rank_manifests.items():
        bare_ns = _annotation(manifest, "cost").get("bare_border_ns")
        cost_ns = sum(int(stretch.get("cost_ns") or 0) for stretch in _stretches(manifest))
        steps = capture.tables["step"].filter(pc.field("rank") == rank).column("step").to_pylist()
        watched = sum(is_watched(capture.path.name, step, window_steps) for step in steps)
        if cost_ns and watched:
            bare_in_all_ns = (len(steps) - watched) * (bare_ns or 0)
            found.append((cost_ns - bare_in_all_ns) / watched / step_ns)
    return max(found, default=None)


def _stretches(manifest: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found = (manifest.get("annotations") or {}).get(RECORDING_KEY)
    return found if isinstance(found, list) else []


def _annotation(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = (manifest.get("annotations") or {}).get(name)
    return found if isinstance(found, dict) else {}


def _largest(parts: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in parts:
        for name, value in part.items():
            if isinstance(value, int):
                found[name] = max(found.get(name, 0), value)
    return found


def _threads_frac(capture: RunCapture) -> float | None:
    """Return the largest share of a core that the threads of a rank took while it recorded."""
    found = []
    for manifest in capture.rank_manifests.values():
        cpu_ns = _annotation(manifest, "cost").get("threads_cpu_ns")
        dur_ns = sum(int(stretch.get("dur_ns") or 0) for stretch in _stretches(manifest))
        if isinstance(cpu_ns, int) and dur_ns:
            found.append(cpu_ns / dur_ns)
    return max(found, default=None)


def _agent_frac(run_path: Path) -> float | None:
    """Return the largest share of a core that an agent of the run took, from its start to its end."""
    found = []
    for directory in host_directories(run_path).values():
        with suppress(MeshscopeError):
            said = read_json(directory / MANIFEST_NAME)
            if said.get("cpu_s") is not None and said.get("alive_s"):
                found.append(said["cpu_s"] / said["alive_s"])
    return max(found, default=None)


def _recorder_rss() -> int | None:
    with tempfile.TemporaryDirectory() as folder:
        return _whole_from(_FULL_RING, {}, folder)


def _kineto_ns() -> int | None:
    """Return what torch adds to a step for Kineto's client; 0 where the job has that by itself."""
    if DAEMON_VARIABLE in os.environ:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        taken = _whole_from(_KINETO_COUNTER, {DAEMON_VARIABLE: "1", DIRECTORY_VARIABLE: folder})
    return None if taken is None else COST_OVER_SEEN * taken


def _whole_from(code: str, variables: Mapping[str, str], *arguments: str) -> int | None:
    """Return the number that a Python of its own prints; None where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = done.stdout.split()
    return int(printed[-1]) if done.returncode == 0 and printed else None
