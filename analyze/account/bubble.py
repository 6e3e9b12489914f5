"""Pipeline idle time against what the schedule makes unavoidable.

With p equal stages and m microbatches, GPipe and 1F1B leave every stage idle for
(p - 1) of (m + p - 1) slots (Huang et al., GPipe, 2019, section 2.3; Narayanan et
al., PipeDream-2BW, 2021); v chunks per rank divide the fill and drain by v
(Narayanan et al., Megatron-LM, SC 2021, section 2.2.2).
"""

from __future__ import annotations

import pandas as pd

from meshscope.probe.schema.terms import Axis, ScheduleKind

from ..align.steps.tail import unsure_microbatches
from ..formulas.schedules import fill_and_drain_frac
from ..formulas.schedules.schedule_records import FILL_AND_DRAIN
from ..tables.classes import LEAST_SEPARATED, UNSPLIT
from ..tables.results import Bubble
from ..tables.trace import Trace, stage_of_ranks
from ..wording.message import Text, message
from .ledger.build import Ledger


def pipeline_bubble(trace: Trace, ledger: Ledger, unseen: tuple[str, ...] = ()) -> Bubble:
    """Return waiting on the pipeline axis by stage, beside the ideal of the schedule.

    Args:
        trace: The capture.
        ledger: Its ledger.
        unseen: Axes along which nothing was recorded.
    """
    stage = stage_of_ranks(trace, sorted(set(ledger.by_step["rank"])))
    frame = ledger.by_step.assign(stage=ledger.by_step["rank"].map(stage))
    wait = f"exposed_{Axis.PP.value}_wait"
    means = frame.groupby("stage", as_index=False)[[wait, "step_ns"]].mean()
    by_stage = means[["stage", wait]].set_axis(["stage", "wait_ns"], axis="columns")
    by_stage["wait_frac"] = means[wait] / means["step_ns"]
    if trace.layout is None:
        return Bubble(None, None, by_stage, message("why.no_layout"))
    if trace.layout.pp < 2:
        return Bubble(None, None, by_stage, message("why.one_stage"))
    ideal, unknown = _ideal(trace)
    is_empty = not trace.row_count("p2p") and not trace.row_count("collective")
    if is_empty or Axis.PP.value in unseen:
        unknown_waits = by_stage.assign(wait_ns=float("nan"), wait_frac=float("nan"))
        if is_empty:
            return Bubble(None, ideal, unknown_waits, message("why.waiting_without_communication"))
        return Bubble(None, ideal, unknown_waits, message("why.waiting_without_pipeline"))
    if frame[UNSPLIT].sum() >= LEAST_SEPARATED * frame["step_ns"].sum():
        unknown_waits = by_stage.assign(wait_ns=float("nan"), wait_frac=float("nan"))
        return Bubble(None, ideal, unknown_waits, message("why.waits_not_separated"))
    measured = float(frame[wait].sum() / frame["step_ns"].sum())
    return Bubble(measured, ideal, by_stage, unknown)


_USUAL = 0.7
"""Share of the steps that have the usual number of microbatches, if there is one."""


def _ideal(trace: Trace) -> tuple[float | None, Text]:
    layout = trace.layout
    assert layout is not None
    schedule, microbatches = schedule_of(trace), microbatches_of(trace)
    if schedule not in FILL_AND_DRAIN:
        if schedule is None:
            return None, message("why.no_schedule")
        return None, message("why.no_closed_form", schedule=str(schedule))
    if microbatches is None:
        return None, message("why.no_microbatches")
    return fill_and_drain_frac(layout.pp, microbatches, layout.vpp), ""


def microbatches_of(trace: Trace) -> int | None:
    """Return the microbatches of a step: as stated, else as many as the spans name.

    None where steps have unlike numbers of them. Where a rank of ours has no steps, its passes are numbered
    from the start of the capture.
    """
    stated = trace.run.get("microbatches")
    if isinstance(stated, int):
        return stated
    if unsure_microbatches(trace):
        return None
    if trace.capabilities.counts_steps_by_rank:
        by_step = _counts_by_step(trace)
        usual = by_step.groupby(level="rank").agg(lambda own: own.mode().max())
        # Ranks that accumulate unequal numbers have none in common; one odd step does not stand for all.
        if usual.nunique() != 1 or (by_step == usual.iloc[0]).mean() < _USUAL:
            return None
        return int(usual.iloc[0])
    seen = trace.frame("span")["microbatch"]
    return int(seen.max()) + 1 if len(seen) and seen.max() >= 0 else None


def microbatch_range(trace: Trace) -> tuple[int, int] | None:
    """Return the least and the most microbatches of a step where steps or ranks have unlike numbers, else None."""
    is_one = isinstance(trace.run.get("microbatches"), int) or microbatches_of(trace) is not None
    if is_one or not trace.capabilities.counts_steps_by_rank or unsure_microbatches(trace):
        return None
    counts = _counts_by_step(trace)
    return (int(counts.min()), int(counts.max())) if len(counts) else None


def _counts_by_step(trace: Trace) -> pd.Series:
    """Return the microbatches by rank and step: after the last border the count goes on without end."""
    spans = trace.frame("span")
    spans = spans[spans["step"].isin(trace.frame("step")["step"]) & (spans["microbatch"] >= 0)]
    counts: pd.Series = spans.groupby(["rank", "step"])["microbatch"].max() + 1
    return counts


def schedule_of(trace: Trace) -> str | None:
    """Return the schedule: as stated, else read off the order of spans on the last stage.

    The last stage has no fill: it does all forwards before the first backward
    only in GPipe, and alternates in 1F1B (interleaved with several chunks). Split
    backward passes have no closed form here. A job with one stage has none.
    """
    stated = trace.run.get("schedule")
    if isinstance(stated, str) and stated not in ("", ScheduleKind.OTHER):
        return stated
    if trace.layout is not None and trace.layout.pp < 2:
        return None
    spans = trace.frame("span")
    kind = spans["kind"].astype(str)
    if "backward_weight" in set(kind) or trace.layout is None:
        return None
    last = spans[(spans["stage"] == spans["stage"].max()) & kind.isin(("forward", "backward"))]
    if last.empty:
        return None
    return _order_of(last, trace.layout.vpp)


def _order_of(spans: pd.DataFrame, chunks: int) -> str:
    is_forward = spans["kind"].astype(str) == "forward"
    keys = [spans["rank"], spans["step"]]
    last_forward = spans["start_ns"].where(is_forward).groupby(keys).max()
    first_backward = spans["start_ns"].where(~is_forward).groupby(keys).min()
    if (last_forward < first_backward).mean() > 0.5:
        return ScheduleKind.GPIPE
    return ScheduleKind.INTERLEAVED if chunks > 1 else ScheduleKind.ONE_F_ONE_B
