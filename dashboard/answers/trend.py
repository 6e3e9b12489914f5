"""The step time of a run over its steps, and MFU where every step has the same tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from meshscope.analyze.align.steps.whole_capture import WHOLE_CAPTURE

from ..runs.loaded_run import LoadedRun


def trend(run: LoadedRun) -> list[dict[str, Any]]:
    """Return one row a step: step, step_ns (the longest of any rank), mfu (None where it is unknown).

    A capture without step marks has none. Steps of which less was recorded than of the analysed ones
    are there too, as their length is known: what a job does now may be among them. MFU of one step
    follows from that of the mean step where steps have the same work: the FLOPs are those of the tokens.
    """
    ledger = run.diagnosis.ledger
    ledger = ledger[ledger["step"] != WHOLE_CAPTURE]
    lengths = ledger.groupby("step")["step_ns"].max()
    lengths = pd.concat([lengths, _of_less_detail(run, ledger)]).sort_index()
    mfu = run.diagnosis.utilization.mfu if _are_alike(run, lengths.index) else None
    mean_ns = run.diagnosis.step_time_ns
    return [
        {"step": step, "step_ns": ns, "mfu": None if mfu is None else mfu * mean_ns / ns}
        for step, ns in zip(lengths.index.tolist(), lengths.tolist(), strict=True)
    ]


def _of_less_detail(run: LoadedRun, ledger: pd.DataFrame) -> pd.Series[float]:
    """Return the lengths, ns, of steps from the first analysed one on that every rank ended, but that hold less."""
    rows = run.trace.frame("step")
    rows = rows[rows["detail"].notna() & rows["rank"].isin(ledger["rank"])]
    rows = rows[(rows["step"] > ledger["step"].min()) & ~rows["step"].isin(ledger["step"])]
    by_step = rows.drop_duplicates(["rank", "step"], keep="last").groupby("step")["dur_ns"]
    is_whole = (by_step.size() == ledger["rank"].nunique()).to_numpy()
    longest: pd.Series[float] = by_step.max().astype(np.float64).loc[is_whole]
    return longest


def _are_alike(run: LoadedRun, steps: pd.Index) -> bool:
    """Return whether all ranks together had the same tokens in each of some steps."""
    rows = run.trace.frame("step")
    rows = rows[rows["step"].isin(steps)]
    if rows.empty or rows["tokens"].isna().any():
        return False
    return int(rows.groupby("step")["tokens"].sum().nunique()) == 1
