"""Pipeline stages: unequal work, and the bubble of the schedule.

Where there is no replay, because no communication was recorded or its order is
not known, the same two things are told from the compute of the stages alone, and
what they cost stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from meshscope.probe.schema.terms import Axis, FindingKind, ScheduleKind

from ..account import Account
from ..bubble import schedule_of
from ..flops import head_in_layers
from ..ledger.classes import COMPUTE_CLASSES
from ..results import Finding
from ..schedules import V_SHAPED
from ..words import joined
from .bad_steps import BadSteps, all_steps, bad_steps
from .grading import MIN_COST, severity
from .held_stages import by_stage_of_model, heavy_stage, position_name

MIN_EXCESS = 0.05
"""Stages differ by less than this through their noise alone, where no replay weighs it."""
MIN_BUBBLE = 0.05
"""Share of the step from which on the waiting of the schedule is worth a finding."""
_OF_CHUNKS = (ScheduleKind.INTERLEAVED, *V_SHAPED)
"""Schedules that have several chunks per rank."""
HEAD_MATCHES = (0.5, 2.0)
"""How far the excess of the stage with the output head may be from what its FLOPs predict."""
_NO_REPLAY = "what it costs is not known, because nothing tells who waited for whom"


def stage_imbalances(account: Account) -> Iterator[Finding]:
    """A pipeline stage that computes longer than the others."""
    if account.attribution is None:
        yield from _heavy_stage(account)
    for cause in account.causes("stage_imbalance"):
        hidden = cause.removal_gain_frac < 0
        if hidden or max(cause.share_frac, cause.removal_gain_frac) < MIN_COST:
            continue
        stage = cause.where["stage"]
        when = _heavy_steps(account, stage, max(cause.share_frac, cause.removal_gain_frac))
        centre = _compute_by_stage(account, when)
        of_head = _of_the_head(account, centre, stage)
        yield Finding(
            kind=FindingKind.STAGE_IMBALANCE
            if of_head is None
            else FindingKind.EMBEDDING_IMBALANCE,
            severity=severity(cause.share_frac),
            where={"stage": stage, **when.where},
            steps=when.steps,
            claim=_imbalance_claim(account, centre, stage) + when.suffix,
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=0.9,
            evidence=(
                _in_ms(f"compute per step by stage, {when.words}", centre),
                *_of_the_model(account, stage),
                *(() if of_head is None else (of_head,)),
            ),
            remedy=_imbalance_remedy(account, stage, when),
        )


def _heavy_steps(account: Account, stage: int, cost_frac: float | None) -> BadSteps:
    """Return the steps in which a stage computes longer than the median of the others."""
    by_step = _compute_of_healthy(account)
    by_stage = by_step.groupby(["step", "stage"])["compute_ns"].median().unstack()
    excess = by_stage[stage] - by_stage.drop(columns=stage).median(axis=1)
    return bad_steps(account.windows, excess, cost_frac)


def _of_the_head(account: Account, centre: pd.Series, stage: int) -> str | None:
    """Return why the excess of a stage is that of the output head, None if it is not.

    With as many layers on every stage, a head that is worth ``k`` layers makes its stage
    longer by ``k`` of them.
    """
    run, stages = account.trace.run, len(centre)
    head, layers = head_in_layers(run), run.get("num_layers")
    if stage != _holder_of_head(account) or head is None or not isinstance(layers, int):
        return None
    others = float(centre.drop(stage).median())
    measured = (float(centre[stage]) / others - 1.0) * layers / stages
    if not HEAD_MATCHES[0] * head <= measured <= HEAD_MATCHES[1] * head:
        return None
    return (
        f"the excess is worth {measured:.1f} layers; the output head of this model is worth {head:.1f} "
        "by its FLOPs"
    )


def _heavy_stage(account: Account) -> Iterator[Finding]:
    """The stage that computes longest, by ``MIN_EXCESS`` more than the median of the others."""
    centre = _compute_by_stage(account, all_steps(account.windows))
    if len(centre) < 2 or int(centre.index.min()) < 0:
        return
    stage = int(centre.index.to_numpy()[centre.to_numpy().argmax()])
    others = float(centre.drop(stage).median())
    if not others or centre[stage] / others - 1 < MIN_EXCESS:
        return
    excess = float(centre[stage]) - others
    when = _heavy_steps(account, stage, excess / account.windows.step_time_ns)
    heavy = _compute_by_stage(account, when)
    yield Finding(
        kind=FindingKind.STAGE_IMBALANCE,
        severity=severity(None),
        where={"stage": stage, **when.where},
        steps=when.steps,
        claim=_imbalance_claim(account, heavy, stage) + when.suffix,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.7,
        evidence=(
            _in_ms(f"compute per step by stage, {all_steps(account.windows).words}", centre),
            f"that is {excess / 1e6:.1f} ms, or {excess / account.windows.step_time_ns:.1%} of the "
            f"step, more than the median of the others; {_NO_REPLAY}",
        ),
        remedy=_imbalance_remedy(account, stage, when),
    )


def _of_the_model(account: Account, stage: int) -> tuple[str, ...]:
    return () if heavy_stage(account, stage) is None else (by_stage_of_model(account),)


def _holder_of_head(account: Account) -> int | None:
    """Return the stage whose ranks hold the last chunk of the model, None where that is not known."""
    layout = account.trace.layout
    if account.trace.run.get("schedule") in V_SHAPED:
        return 0
    # Several chunks a rank go round, or there and back again.
    if layout is None or (layout.vpp > 1 and schedule_of(account.trace) is None):
        return None
    return layout.pp - 1


def _imbalance_claim(account: Account, centre: pd.Series, stage: int) -> str:
    held = ["the embedding"] if stage == 0 else []
    held += ["the output head", "the loss"] if stage == _holder_of_head(account) else []
    others = float(centre.drop(stage).median())
    longer = f"computes {centre[stage] / others - 1:.0%} longer than the others"
    heavy = heavy_stage(account, stage)
    if heavy is not None:
        longer += (
            f": it is stage {heavy.stage} (chunk {heavy.chunk} there), which takes "
            f"{heavy.excess_frac:.0%} longer than the median of the other stages"
        )
    place = "first" if stage == 0 else "last"
    remark = f"{place} stage, which holds {joined(held)}" if held else ""
    return f"{position_name(account, stage, remark)} {longer}"


def _imbalance_remedy(account: Account, stage: int, when: BadSteps) -> str:
    heavy, name = heavy_stage(account, stage), position_name(account, stage)
    name = name[:1].lower() + name[1:] if heavy is None else f"stage {heavy.stage}"
    if not when.are_all:
        return (
            f"Layers do not come and go: look at the devices and hosts of {name}, and at what its "
            f"ranks do {when.words}"
        )
    has_head = stage == _holder_of_head(account) and (heavy is None or heavy.is_last)
    return f"Move layers away from {name}" + (
        ", or split the output head from the last transformer layers" if has_head else ""
    )


def _in_ms(what: str, by_stage: pd.Series) -> str:
    return f"{what}: " + ", ".join(f"{index}: {ns / 1e6:.1f} ms" for index, ns in by_stage.items())


def _compute_by_stage(account: Account, when: BadSteps) -> pd.Series:
    """Return the compute per step of each stage in some steps: median over its ranks."""
    rows = _compute_of_healthy(account)
    per_rank = rows[rows["step"].isin(when.steps)].groupby(["stage", "rank"])["compute_ns"].mean()
    return per_rank.groupby(level="stage").median()


def _compute_of_healthy(account: Account) -> pd.DataFrame:
    """Return rank, step, stage and compute_ns, one row a rank and step.

    A suspected rank does not count, unless a stage has no other.
    """
    by_step = account.ledger.by_step
    suspects = account.slow_ranks()
    healthy = [rank for rank in account.stage if rank not in suspects]
    if {account.stage[rank] for rank in healthy} == set(account.stage.values()):
        by_step = by_step[by_step["rank"].isin(healthy)]
    compute = by_step[list(COMPUTE_CLASSES)].sum(axis=1)
    stage = by_step["rank"].map(account.stage)
    return by_step[["rank", "step"]].assign(stage=stage, compute_ns=compute)


def bubble(account: Account) -> Iterator[Finding]:
    """Waiting that the schedule imposes even with equal stages and no jitter."""
    ideal, measured = account.bubble.ideal_frac, account.bubble.measured_frac
    if measured is None and account.attribution is None:
        yield from _idle_stages(account)
    waiting = account.attribution.waiting if account.attribution is not None else None
    if measured is None or waiting is None:
        return
    cost = waiting.bubble_ns / account.windows.step_time_ns
    if cost < MIN_BUBBLE:
        return
    when = all_steps(account.windows)
    formula = "" if ideal is None else f"; {_formula(ideal)}"
    yield Finding(
        kind=FindingKind.PIPELINE_BUBBLE,
        severity=severity(cost),
        where={"axis": Axis.PP.value, **when.where},
        claim=f"The schedule itself makes the ranks wait {cost:.1%} of the step",
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            f"replayed with equal stages and no jitter, ranks still wait {cost:.1%} of the measured step"
            + formula,
            f"measured waiting on the pipeline axis: {measured:.1%} of the step, averaged over ranks, "
            f"{when.words}",
        ),
        remedy=_bubble_remedy(account),
    )


def _idle_stages(account: Account) -> Iterator[Finding]:
    """Stages that compute nothing for a part of the step, where no waiting was recorded."""
    when = all_steps(account.windows)
    centre = _compute_by_stage(account, when)
    if len(centre) < 2 or int(centre.index.min()) < 0:
        return
    idle = 1 - centre / account.windows.step_time_ns
    if idle.mean() < MIN_BUBBLE:
        return
    ideal = account.bubble.ideal_frac
    yield Finding(
        kind=FindingKind.PIPELINE_BUBBLE,
        severity=severity(None),
        where={"axis": Axis.PP.value, **when.where},
        claim=f"The stages compute nothing for {idle.mean():.1%} of the step",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.7,
        evidence=(
            f"idle share by stage, {when.words}: "
            + ", ".join(f"{i}: {share:.1%}" for i, share in idle.items()),
            *((f"with equal stages {_formula(ideal)}",) if ideal is not None else ()),
            f"idle time is waiting or what was not recorded; {_NO_REPLAY}",
        ),
        remedy=_bubble_remedy(account),
    )


def _bubble_remedy(account: Account) -> str:
    """Return what the schedule of the run does not do yet."""
    layout, schedule = account.trace.layout, schedule_of(account.trace)
    ways = ["more microbatches per step"]
    if layout is not None and layout.vpp == 1 and schedule not in _OF_CHUNKS:
        ways.append("several chunks per rank")
    if schedule not in (ScheduleKind.ZB_H1, *V_SHAPED):
        ways.append("a zero-bubble schedule")
    return f"Use {joined(ways, 'or')}"


def _formula(ideal: float) -> str:
    return f"(p - 1) / (m v + p - 1) = {ideal:.1%} of an ideal step"
