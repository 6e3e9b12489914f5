"""CPU time of passes: whether who takes longer computes in it, or stands still without the CPU."""

from __future__ import annotations

import pandas as pd

from ...explain.run_account import Account

MIN_CPU_SHARE = 0.5
"""Of an excess on a CPU; with less it was not computed in it."""


def cpu_per_step(account: Account) -> pd.Series | None:
    """Return thread CPU time in compute spans per step by rank, ns; None on a GPU, where the CPU only launches."""
    if not str(account.trace.run.get("device_name") or "").startswith("CPU"):
        return None
    spans = account.trace.frame("span")
    spans = spans[spans["kind"].isin(["forward", "backward"]) & spans["cpu_ns"].notna()]
    return spans.groupby("rank")["cpu_ns"].sum() / max(spans["step"].nunique(), 1)


def stage_off_cpu(account: Account, stage: int, excess_ns: float) -> tuple[float, float] | None:
    """Return CPU time per step of a stage and of the others, ns, if most of its excess is time without a CPU.

    Args:
        account: The run.
        stage: The heavy stage.
        excess_ns: What it takes longer per step than the others.
    """
    cpu = cpu_per_step(account)
    if cpu is None:
        return None
    by_stage = cpu.groupby(cpu.index.map(account.stage)).median()
    if stage not in by_stage.index or len(by_stage) < 2:
        return None
    own, others = float(by_stage[stage]), float(by_stage.drop(stage).median())
    return (own, others) if own - others < MIN_CPU_SHARE * excess_ns else None
