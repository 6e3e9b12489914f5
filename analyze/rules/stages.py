"""Pipeline stages: unequal work, and the bubble of the schedule."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import Axis, FindingKind

from ..account import Account
from ..ledger import COMPUTE_CLASSES
from ..results import Finding
from .grading import MIN_COST, severity


def stage_imbalances(account: Account) -> Iterator[Finding]:
    """A pipeline stage that computes longer than the others."""
    for cause in account.causes("stage_imbalance"):
        hidden = cause.removal_gain_frac < 0
        if hidden or max(cause.share_frac, cause.removal_gain_frac) < MIN_COST:
            continue
        stage = cause.where["stage"]
        centre = _compute_by_stage(account)
        last = stage == int(centre.index.max())
        place = (
            "last stage, which holds the output head and the loss"
            if last
            else ("first stage, which holds the embedding" if stage == 0 else "stage")
        )
        others = float(centre.drop(stage).median())
        yield Finding(
            kind=FindingKind.STAGE_IMBALANCE,
            severity=severity(cause.share_frac),
            where={"stage": stage},
            claim=f"Stage {stage} ({place}) computes {centre[stage] / others - 1:.0%} longer than the others",
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=0.9,
            evidence=(
                "compute per step by stage: "
                + ", ".join(f"{index}: {ns / 1e6:.1f} ms" for index, ns in centre.items()),
            ),
            remedy=f"Move layers away from stage {stage}"
            + (", or split the output head from the last transformer layers" if last else ""),
        )


def _compute_by_stage(account: Account) -> pd.Series:
    """Return the compute per step of each stage: median over its ranks.

    A suspected rank does not count, unless a stage has no other.
    """
    by_step = account.ledger.by_step
    suspects = {cause.where["rank"] for cause in account.causes("straggler_rank")}
    healthy = [rank for rank in account.stage if rank not in suspects]
    if {account.stage[rank] for rank in healthy} == set(account.stage.values()):
        by_step = by_step[by_step["rank"].isin(healthy)]
    compute = by_step[list(COMPUTE_CLASSES)].sum(axis=1)
    per_rank = compute.groupby(by_step["rank"]).mean()
    stage = per_rank.index.map(account.stage)
    return per_rank.groupby(stage).median()


def bubble(account: Account) -> Iterator[Finding]:
    """Waiting that the schedule imposes even with equal stages and no jitter."""
    ideal, measured = account.bubble.ideal_frac, account.bubble.measured_frac
    wait = account.attribution.ideal_wait_ns if account.attribution is not None else None
    if measured is None or wait is None:
        return
    cost = wait / account.windows.step_time_ns
    if cost < 0.05:
        return
    formula = "" if ideal is None else f"; (p - 1) / (m v + p - 1) = {ideal:.1%} of an ideal step"
    yield Finding(
        kind=FindingKind.PIPELINE_BUBBLE,
        severity=severity(cost),
        where={"axis": Axis.PP.value},
        claim=f"The schedule itself makes the ranks wait {cost:.1%} of the step",
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            f"replayed with equal stages and no jitter, ranks still wait {cost:.1%} of the measured step"
            + formula,
            f"measured waiting on the pipeline axis: {measured:.1%} of the step, averaged over ranks",
        ),
        remedy="Use more microbatches per step, several chunks per rank, or a zero-bubble schedule",
    )
