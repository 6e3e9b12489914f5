"""Pipeline stages: unequal work, and the bubble of the schedule.

Where there is no replay, because no communication was recorded or its order is
not known, the same two things are found from the compute of the stages alone, and
what they cost stays unknown.

Where the ranks of a stage are those of a host, nothing but the model says which of the two is slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from meshscope.probe.schema.printable import MOST_LISTED
from meshscope.probe.schema.terms import Axis, FindingKind

from ...account.bubble import schedule_of
from ...explain.causes.stages import host_of_stage
from ...explain.run_account import Account
from ...formulas.flops import head_in_layers, known_model
from ...formulas.schedules import CHUNKED, SPLIT_BACKWARD, V_SHAPED
from ...tables.classes import COMPUTE_CLASSES
from ...tables.results import Finding
from ...wording.message import Message, message
from .bad_steps import BadSteps, all_steps, bad_steps, per_step
from .grading import MIN_COST, severity
from .held_stages import (
    by_stage_of_model,
    heavy_stage,
    position_name,
    position_subject,
    stage_times,
)
from .off_cpu import stage_off_cpu
from .starved import CONFIDENCE as CROWDED
from .starved import PROCESSORS_FIRST, stage_waits_for_a_processor

MIN_PART = 0.01
"""Share of the computing from which a class of it is compared."""


def stage_or_host(
    account: Account, stage: int, host: str, gain_frac: float | None = None
) -> Iterator[Message]:
    """Say why the stage and the host cannot be distinguished, and what each would show.

    Args:
        account: The run.
        stage: The heavy stage.
        host: Its host.
        gain_frac: What the repair of the host returns; None if unknown.
    """
    ranks = [rank for rank, own in account.stage.items() if own == stage]
    yield message("stage_or_host.same_ranks", stage=stage, host=host, ranks=ranks)
    by_step = account.ledger.by_step
    means = by_step.groupby(by_step["rank"].map(account.stage))[list(COMPUTE_CLASSES)].mean()
    own, others = means.loc[stage].to_dict(), means.drop(stage).median()
    large = others[others > MIN_PART * others.sum()]
    ratios = [
        message("stage_or_host.ratio", name=str(name), ratio=own[str(name)] / ns)
        for name, ns in large.items()
    ]
    if ratios:
        yield message("stage_or_host.ratios", ratios=ratios)
    if gain_frac is not None:
        yield message("stage_or_host.gain", host=host, gain=gain_frac)


MIN_EXCESS = 0.05
"""Stages differ by less than this through their noise alone, where no replay weighs it."""
MIN_BUBBLE = 0.05
"""Share of the step from which on the waiting of the schedule is worth a finding."""
HEAD_MATCHES = (0.5, 2.0)
"""How far the excess of the stage with the output head may be from what its FLOPs predict."""
_NO_REPLAY = message("stage.no_replay")


def stage_imbalances(account: Account) -> Iterator[Finding]:
    """A pipeline stage that computes longer than the others."""
    if account.attribution is None:
        yield from _heavy_stage(account)
    for cause in account.causes("stage_imbalance"):
        hidden = cause.removal_gain_frac < 0
        if hidden or cause.worth_frac < MIN_COST:
            continue
        stage = cause.where["stage"]
        when = _heavy_steps(account, stage, cause.worth_frac)
        centre = _compute_by_stage(account, when)
        of_head = _of_the_head(account, centre, stage)
        host = None if of_head is not None else host_of_stage(account.trace, account.stage, stage)
        crowding = _crowding(account, stage)
        off_cpu = [] if crowding else _off_cpu(account, centre, stage)
        yield Finding(
            kind=FindingKind.STAGE_IMBALANCE
            if of_head is None
            else FindingKind.EMBEDDING_IMBALANCE,
            severity=severity(cause.share_frac),
            where={"stage": stage, **({} if host is None else {"host": host}), **when.where},
            steps=when.steps,
            claim=_imbalance_claim(account, centre, stage, when),
            cost_frac=cause.share_frac,
            removal_gain_frac=cause.removal_gain_frac,
            confidence=CROWDED if crowding else 0.9,
            evidence=(
                *crowding,
                *_held_there(account, stage),
                *_of_the_model(account, stage),
                _compute_fact(account, centre, when),
                *off_cpu,
                *(() if of_head is None else (of_head,)),
                *_as_host(account, stage, host, cause.gain_as_host_frac),
            ),
            remedy=PROCESSORS_FIRST
            if crowding
            else _after_what_blocks(account, stage, when, host, off_cpu),
        )


def _crowding(account: Account, stage: int) -> list[Message]:
    """Return what shows that a stage is heavy because its ranks wait for a processor, else nothing."""
    centre = _compute_by_stage(account, all_steps(account.windows))
    excess_ns = float(centre[stage]) - float(centre.drop(stage).median())
    said = stage_waits_for_a_processor(account, stage, excess_ns)
    return [] if said is None else [said]


def _off_cpu(account: Account, centre: pd.Series, stage: int) -> list[Message]:
    """Return the CPU times that show that a stage stands still in its passes, else nothing."""
    cpu = stage_off_cpu(account, stage, float(centre[stage]) - float(centre.drop(stage).median()))
    if cpu is None:
        return []
    each = per_step(account.windows)
    return [message("stage.cpu_time", each=each, own_ns=cpu[0], others_ns=cpu[1])]


def _after_what_blocks(
    account: Account, stage: int, when: BadSteps, host: str | None, off_cpu: list[Message]
) -> Message:
    """Return the remedy of a heavy stage, behind the search for what blocks it where it stands still."""
    remedy = _imbalance_remedy(account, stage, when, host)
    if not off_cpu:
        return remedy
    return message("stage.remedy_off_cpu", who=position_name(account, stage), then=remedy)


def _as_host(
    account: Account, stage: int, host: str | None, gain_frac: float | None
) -> Iterator[Message]:
    if host is not None:
        yield from stage_or_host(account, stage, host, gain_frac)


def _heavy_steps(account: Account, stage: int, cost_frac: float | None) -> BadSteps:
    """Return the steps in which a stage computes longer than the median of the others."""
    by_step = _compute_of_healthy(account)
    by_stage = by_step.groupby(["step", "stage"])["compute_ns"].median().unstack()
    excess = by_stage[stage] - by_stage.drop(columns=stage).median(axis=1)
    return bad_steps(account.windows, excess, cost_frac)


def _of_the_head(account: Account, centre: pd.Series, stage: int) -> Message | None:
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
    return message("stage.worth", layers=measured, head=float(head))


def _heavy_stage(account: Account) -> Iterator[Finding]:
    """The stage that computes longest, by ``MIN_EXCESS`` more than the median of the others."""
    if not _has_stages(account):
        return
    centre = _compute_by_stage(account, all_steps(account.windows))
    stage = int(centre.index.to_numpy()[centre.to_numpy().argmax()])
    others = float(centre.drop(stage).median())
    if not others or centre[stage] / others - 1 < MIN_EXCESS:
        return
    excess = float(centre[stage]) - others
    when = _heavy_steps(account, stage, excess / account.windows.step_time_ns)
    heavy, host = (
        _compute_by_stage(account, when),
        host_of_stage(account.trace, account.stage, stage),
    )
    yield Finding(
        kind=FindingKind.STAGE_IMBALANCE,
        severity=severity(None),
        where={"stage": stage, **({} if host is None else {"host": host}), **when.where},
        steps=when.steps,
        claim=_imbalance_claim(account, heavy, stage, when),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.7,
        evidence=(
            *_held_there(account, stage),
            _compute_fact(account, centre, all_steps(account.windows)),
            message("stage.excess", excess_ns=excess, share=excess / account.windows.step_time_ns),
            _NO_REPLAY,
            *_as_host(account, stage, host, None),
        ),
        remedy=_imbalance_remedy(account, stage, when, host),
    )


def _of_the_model(account: Account, stage: int) -> Iterator[Message]:
    """Say which stage of the model is the heavy one of a position with several."""
    heavy = heavy_stage(account, stage)
    if heavy is not None:
        own = {"stage": heavy.stage, "chunk": heavy.chunk, "longer": heavy.excess_frac}
        yield message("stage.heavy", **own)
        yield by_stage_of_model(account)


def _holder_of_head(account: Account) -> int | None:
    """Return the stage whose ranks hold the last chunk of the model, None where that is not known."""
    layout = account.trace.layout
    if account.trace.run.get("schedule") in V_SHAPED:
        return 0
    # Several chunks a rank go round, or there and back again.
    if layout is None or (layout.vpp > 1 and schedule_of(account.trace) is None):
        return None
    return layout.pp - 1


def _is_known_language_model(account: Account) -> bool:
    """Return whether the model is known, and with it that it has an embedding and a head."""
    return known_model(account.trace.run).model is not None


def _held_there(account: Account, stage: int) -> Iterator[Message]:
    """Say what else than layers the first or the last stage holds, of a model that is known to have it."""
    if not _is_known_language_model(account):
        return
    is_last = stage == _holder_of_head(account)
    if stage == 0 and is_last:
        yield message("stage.holds_both")
    elif stage == 0:
        yield message("stage.holds_embedding")
    elif is_last:
        yield message("stage.holds_head")


def _imbalance_claim(account: Account, centre: pd.Series, stage: int, when: BadSteps) -> Message:
    others = float(centre.drop(stage).median())
    longer = float(centre[stage]) / others - 1
    who = position_subject(account, stage)
    if when.are_all:
        return message("stage.claim", who=who, longer=longer)
    return message("stage.claim_when", who=who, longer=longer, when=when.message)


def _imbalance_remedy(account: Account, stage: int, when: BadSteps, host: str | None) -> Message:
    remedy = _stage_remedy(account, stage, when)
    return remedy if host is None else message("stage_or_host.remedy", host=host, then=remedy)


def _stage_remedy(account: Account, stage: int, when: BadSteps) -> Message:
    heavy, name = heavy_stage(account, stage), position_name(account, stage)
    if heavy is not None:
        name = message("stage.one", stage=heavy.stage)
    if not when.are_all:
        return message("stage.remedy_at_times", who=name, when=when.message)
    is_last = stage == _holder_of_head(account) and (heavy is None or heavy.is_last)
    if is_last and _is_known_language_model(account):
        return message("stage.remedy_of_head", who=name)
    return message("stage.remedy", who=name)


def _compute_fact(account: Account, by_stage: pd.Series, when: BadSteps) -> Message:
    if when.are_all:
        each = per_step(account.windows)
        return message("stage.compute", each=each, stages=stage_times(by_stage))
    return message("stage.compute_when", when=when.message, stages=stage_times(by_stage))


def _has_stages(account: Account) -> bool:
    """Return whether the captured ranks are known to be of several stages."""
    stages = set(account.stage.values())
    return len(stages) > 1 and min(stages) >= 0


def _compute_by_stage(account: Account, when: BadSteps) -> pd.Series:
    """Return the compute per step of each stage in some steps: median over its ranks."""
    rows = _compute_of_healthy(account)
    per_rank = rows[rows["step"].isin(when.steps)].groupby(["stage", "rank"])["compute_ns"].mean()
    return per_rank.groupby(level="stage").median()


def _compute_of_healthy(account: Account) -> pd.DataFrame:
    """Return rank, step, stage and compute_ns, one row a rank and step.

    A suspected rank does not count. Where a stage has no other, it counts as if it had not been slow.
    """
    by_step = account.ledger.by_step
    rows = by_step[["rank", "step"]].assign(
        stage=by_step["rank"].map(account.stage),
        compute_ns=by_step[list(COMPUTE_CLASSES)].sum(axis=1).astype(np.float64),
    )
    is_slow = rows["rank"].isin(account.slow_ranks())
    rows = rows[~is_slow | ~rows["stage"].isin(rows.loc[~is_slow, "stage"])].copy()
    found = None if account.attribution is None else account.attribution.detection
    for verdict in () if found is None else found.suspects:
        slowed = (rows["rank"] == verdict.rank) & np.logical_or.reduce(
            [rows["step"].between(first, last) for first, last in verdict.slow_steps]
        )
        rows.loc[slowed, "compute_ns"] /= 1.0 + (verdict.slowdown or 0.0)
    return rows


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
    yield Finding(
        kind=FindingKind.PIPELINE_BUBBLE,
        severity=severity(cost),
        where={"axis": Axis.PP.value, **when.where},
        claim=message("pipeline_bubble.claim", cost=cost),
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.9,
        evidence=(
            message("pipeline_bubble.measured", measured=measured),
            message("pipeline_bubble.method"),
            *_ideal(ideal),
        ),
        remedy=_bubble_remedy(account),
    )


def _idle_stages(account: Account) -> Iterator[Finding]:
    """Stages that compute nothing for a part of the step, where no waiting was recorded."""
    if not _has_stages(account):
        return
    when = all_steps(account.windows)
    centre = _compute_by_stage(account, when)
    idle = 1 - centre / account.windows.step_time_ns
    if idle.mean() < MIN_BUBBLE:
        return
    yield Finding(
        kind=FindingKind.PIPELINE_BUBBLE,
        severity=severity(None),
        where={"axis": Axis.PP.value, **when.where},
        claim=message("pipeline_bubble.claim_idle", idle=float(idle.mean())),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.7,
        evidence=(
            message("pipeline_bubble.idle", when=when.message, stages=_idle_shares(idle)),
            *_ideal(account.bubble.ideal_frac),
            message("pipeline_bubble.idle_is"),
            _NO_REPLAY,
        ),
        remedy=_bubble_remedy(account),
    )


def _idle_shares(idle: pd.Series) -> list[Message]:
    """Return the idle share of each stage; of more than a sentence lists the largest first."""
    ordered = idle if len(idle) <= MOST_LISTED else idle.sort_values(ascending=False)
    return [
        message("pipeline_bubble.idle_of", stage=stage, share=share)
        for stage, share in zip(ordered.index.tolist(), ordered.tolist(), strict=True)
    ]


def _bubble_remedy(account: Account) -> Message:
    """Return what the schedule of the run does not do yet."""
    layout, schedule = account.trace.layout, schedule_of(account.trace)
    ways = [message("pipeline_bubble.more_microbatches")]
    if layout is not None and layout.vpp == 1 and schedule not in CHUNKED:
        ways.append(message("pipeline_bubble.several_chunks"))
    if schedule not in SPLIT_BACKWARD:
        ways.append(message("pipeline_bubble.zero_bubble"))
    return message("pipeline_bubble.remedy", ways=ways)


def _ideal(ideal: float | None) -> Iterator[Message]:
    if ideal is not None:
        yield message("pipeline_bubble.ideal", ideal=ideal)
