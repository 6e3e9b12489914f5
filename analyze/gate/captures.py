"""From a capture to what a gate compares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from meshscope.probe.schema.manifest import MANIFEST_NAME

from ..account.bubble import microbatches_of, schedule_of
from ..explain.run_account import Account
from ..tables.classes import CLASSES, COMPUTE_CLASSES
from ..wording.words import is_missing
from .counts import counts_of
from .loaded import LoadedRun

_SETUP = (
    *("world_size", "tokens_per_step", "num_layers", "hidden_size", "ffn_size", "num_heads"),
    *("seq_len", "vocab_size", "parameters", "device_name", "capture_level"),
)

_LATEST_NS = 1 << 62
"""The year 2116: a launch after it is none."""


def run_of(account: Account, name: str, ended: str = "") -> LoadedRun:
    """Return a measured capture as a run of a gate.

    Args:
        account: The capture, measured.
        name: What the run is called.
        ended: How it broke off; empty where it did not.
    """
    has_marks = account.windows.has_marks
    return LoadedRun(
        name=name,
        step_ns=_step_times(account) if has_marks else np.empty(0),
        classes=_classes(account),
        stages=_stages(account),
        counts=counts_of(account),
        setup=_setup(account),
        began_unix_ns=_began(account.trace.path),
        ended=ended,
    )


def _step_times(account: Account) -> np.ndarray:
    """Return the step time by step: the longest window of its ranks."""
    frame = account.windows.frame
    dur = (frame["end_ns"] - frame["start_ns"]).astype("float64")
    return dur.groupby(frame["step"]).max().reindex(account.windows.steps).to_numpy(np.float64)


def _classes(account: Account) -> pd.DataFrame:
    by_step = account.ledger.by_step
    means: pd.DataFrame = by_step.groupby("step")[list(CLASSES)].mean()
    return means.reindex(account.windows.steps)


def _stages(account: Account) -> pd.DataFrame:
    """Return the compute of each stage by step, ns, the mean over its ranks."""
    by_step = account.ledger.by_step
    stage = by_step["rank"].map(account.stage)
    work = by_step[list(COMPUTE_CLASSES)].sum(axis=1)
    known = stage.notna() & (stage >= 0)
    if not known.any():
        return pd.DataFrame(index=account.windows.steps)
    means = work[known].groupby([by_step.loc[known, "step"], stage[known].astype(int)]).mean()
    return means.unstack().reindex(account.windows.steps)


def _setup(account: Account) -> dict[str, str | int | float | None]:
    trace, run = account.trace, account.trace.run
    layout = trace.layout
    setup: dict[str, object] = {name: run.get(name) for name in _SETUP}
    for axis in ("tp", "pp", "dp", "cp", "ep", "vpp"):
        setup[axis] = run.get(axis) if layout is None else getattr(layout, axis)
    setup["captured_ranks"] = len(trace.ranks)
    setup["schedule"] = schedule_of(trace)
    setup["microbatches"] = microbatches_of(trace)
    setup["origin"] = trace.origin
    software = _manifest(trace.path).get("software")
    if isinstance(software, dict):
        setup |= {f"version_{name}": str(version) for name, version in software.items()}
    return {name: _plain(value) for name, value in setup.items() if not is_missing(value)}


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a run; empty where there is none."""
    try:
        manifest = msgspec.json.decode((path / MANIFEST_NAME).read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return manifest if isinstance(manifest, dict) else {}


def _began(path: Path) -> int | None:
    began = _manifest(path).get("created_unix_ns")
    is_time = isinstance(began, int) and not isinstance(began, bool) and 0 < began < _LATEST_NS
    return began if is_time else None


def _plain(value: object) -> str | int | float | None:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, str | int | float) else str(value)
