"""The straggler part of a diagnosis: ranks with their cost, steps, and stages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import FindingKind

from ..align.steps.windows import WHOLE_CAPTURE
from ..tables.classes import COMPUTE_CLASSES, REFINED
from ..tables.results import ENDS, Diagnosis, Finding
from ..wording.limits import Limit

_SLOW_RANKS = (FindingKind.STRAGGLER_RANK, FindingKind.CLOCK_THROTTLE)
_KINDS = (
    *_SLOW_RANKS,
    FindingKind.STAGE_IMBALANCE,
    *ENDS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stragglers:
    """Who makes the others wait, and what that costs."""

    run: dict[str, object]
    step_time_ns: float | None
    """Mean length of the analysed steps; None without steps."""
    findings: tuple[Finding, ...]
    """Slow ranks and clocks, unequal stages, and who did not arrive, most costly first."""
    ranks: pd.DataFrame
    """Those of ``Diagnosis.stragglers`` with share_frac, direct_ns, induced_wait_ns and ``named``:
    whether a finding names the rank. NaN where a rank is no cause of its own."""
    steps: pd.DataFrame
    """One row a step: step, step_ns, slowest_rank (most time outside waiting), its own_ns,
    and median_own_ns over the ranks; the last three are missing where no waiting was seen."""
    stages: pd.DataFrame
    """One row a stage: stage, ranks, compute_ns (median over its ranks of their mean per step)."""
    limits: tuple[Limit, ...]
    unknown_causes: tuple[Limit, ...] = ()
    """Those of the limits for which slow ranks are not known: without a finding no all-clear."""


def find_stragglers(diagnosis: Diagnosis) -> Stragglers:
    """Return what a diagnosis says about ranks that are slower than their peers."""
    has_steps = len(diagnosis.ledger) > 0
    return Stragglers(
        run=diagnosis.run,
        step_time_ns=diagnosis.step_time_ns if has_steps else None,
        findings=tuple(found for found in diagnosis.findings if found.kind in _KINDS),
        ranks=_ranks(diagnosis),
        steps=_steps(diagnosis),
        stages=_stages(diagnosis),
        limits=diagnosis.limits,
        unknown_causes=diagnosis.unknown_causes,
    )


def _ranks(diagnosis: Diagnosis) -> pd.DataFrame:
    causes = [c for c in diagnosis.causes if c.kind in _SLOW_RANKS and "rank" in c.where]
    named = [
        rank
        for found in diagnosis.findings
        if found.kind in _SLOW_RANKS
        for rank in (*found.where.get("ranks", ()), found.where.get("rank"))
    ]
    table = diagnosis.stragglers.copy()
    for column in ("share_frac", "direct_ns", "induced_wait_ns"):
        values: dict[int, float] = {}
        for cause in causes:
            # A rank may be slow by its clock, and besides.
            rank = cause.where["rank"]
            values[rank] = values.get(rank, 0.0) + getattr(cause, column)
        table[column] = table["rank"].map(values).astype("float64")
    table["named"] = table["rank"].isin(named)
    return table


def _steps(diagnosis: Diagnosis) -> pd.DataFrame:
    """Return length of each step, and the rank that spent most of it on its own work.

    Nothing of a capture without step marks. Where no communication was seen and therefore nothing is
    known, the own time of a rank is not known: it would be the whole step on all of them.
    """
    columns = ["step", "step_ns", "slowest_rank", "own_ns", "median_own_ns"]
    ledger = diagnosis.ledger
    if ledger.empty or (ledger["step"] == WHOLE_CAPTURE).all():
        return pd.DataFrame(columns=columns)
    waits = [name for name in ledger.columns if str(name).startswith("exposed_")]
    own = ledger[["rank", "step", "step_ns"]].assign(
        own_ns=ledger["step_ns"] - ledger[waits].sum(axis=1)
    )
    by_step = own.groupby("step")
    worst = own.loc[by_step["own_ns"].idxmax()].set_index("step")
    table = pd.DataFrame(
        {
            "step_ns": by_step["step_ns"].max(),
            "slowest_rank": worst["rank"],
            "own_ns": worst["own_ns"],
            "median_own_ns": by_step["own_ns"].median(),
        }
    )
    if diagnosis.unknown_causes and not ledger[waits].to_numpy().any():
        table = table.assign(slowest_rank=None, own_ns=np.nan, median_own_ns=np.nan)
    return table.reset_index()[columns]


def _stages(diagnosis: Diagnosis) -> pd.DataFrame:
    ledger, ranks = diagnosis.ledger, diagnosis.stragglers
    stage = dict(zip(ranks["rank"].tolist(), ranks["pp"].tolist(), strict=True))
    if ledger.empty or not stage or min(stage.values()) < 0:
        return pd.DataFrame(columns=["stage", "ranks", "compute_ns"])
    compute = ledger[[*COMPUTE_CLASSES, *REFINED]].sum(axis=1).groupby(ledger["rank"]).mean()
    groups = compute.groupby([stage[rank] for rank in compute.index])
    table = pd.DataFrame({"ranks": groups.size(), "compute_ns": groups.median()})
    return table.rename_axis("stage").reset_index()
