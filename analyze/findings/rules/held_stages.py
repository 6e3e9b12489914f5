"""Which stages of the model the ranks of a pipeline position hold, and which of them is heavy.

A position of the pipeline is called a stage where its ranks hold one chunk of the model. Where
they hold several, the stages are those of the model: position 2 of 4 holds stages 2 and 6 if
the chunks go round, 2 and 5 if they go there and back.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from meshscope.probe.schema.printable import MOST_LISTED
from meshscope.probe.schema.terms import SpanKind

from ...explain.run_account import Account
from ...wording.message import Message, message
from .bad_steps import per_step

MIN_HEAVIER = 0.05
"""A stage of the model is heavy if its passes take longer than the others' by this."""
_PASSES = [
    SpanKind.FORWARD.value,
    SpanKind.BACKWARD.value,
    SpanKind.BACKWARD_INPUT.value,
    SpanKind.BACKWARD_WEIGHT.value,
]


class HeavyStage(NamedTuple):
    """A stage of the model whose passes take longer than those of the others."""

    stage: int
    chunk: int
    excess_frac: float
    """Against the median of the others."""
    is_last: bool
    """Whether it is the last one of the model."""


def position_name(account: Account, position: int) -> Message:
    """Return ``stage 2``, or ``pipeline rank 2 (stages 2 and 5)`` where it holds several."""
    held = _held_by(account, position)
    if len(held) < 2:
        return message("stage.one", stage=position)
    return message("stage.several", position=position, stages=held)


def position_subject(account: Account, position: int) -> Message:
    """Return the same for the beginning of a sentence: ``Stage 2``."""
    held = _held_by(account, position)
    if len(held) < 2:
        return message("stage.subject", stage=position)
    return message("stage.subject_of_several", position=position, stages=held)


def heavy_stage(account: Account, position: int) -> HeavyStage | None:
    """Return the one stage of a position with several that is heavy; None where none or all are."""
    rows = _held(account)
    own = rows[rows["position"] == position]
    if len(own) < 2:
        return None
    worst = own.iloc[int(own["dur_ns"].to_numpy().argmax())]
    others = rows.loc[rows["stage"] != worst["stage"], "dur_ns"]
    rest = own.loc[own["stage"] != worst["stage"], "dur_ns"]
    centre = float(others.median())
    if worst["dur_ns"] < (1 + MIN_HEAVIER) * max(centre, float(rest.max())) or not centre:
        return None
    excess = float(worst["dur_ns"]) / centre - 1
    stage = int(worst["stage"])
    return HeavyStage(stage, int(worst["chunk"]), excess, stage == int(rows["stage"].max()))


def by_stage_of_model(account: Account) -> Message:
    """Return what the passes of each stage of the model take per step."""
    rows = _held(account)
    of_stage = rows.set_index("stage")["dur_ns"]
    each = per_step(account.windows)
    return message("stage.passes_by_stage", each=each, stages=stage_times(of_stage))


def stage_times(dur_ns: pd.Series) -> list[Message]:
    """Return a time of each stage; of more than a sentence lists the longest first."""
    ordered = dur_ns.sort_index()
    if len(ordered) > MOST_LISTED:
        ordered = dur_ns.sort_values(ascending=False, kind="stable")
    return [
        message("stage.time", stage=stage, dur_ns=time_ns)
        for stage, time_ns in zip(ordered.index.tolist(), ordered.tolist(), strict=True)
    ]


def _held_by(account: Account, position: int) -> list[int]:
    """Return the stages of the model that a position holds; empty with one chunk a rank."""
    rows = _held(account)
    return sorted(rows.loc[rows["position"] == position, "stage"].astype(int).tolist())


def _held(account: Account) -> pd.DataFrame:
    """Return position, stage, chunk and dur_ns, the median over ranks; empty with one chunk a rank."""
    empty = pd.DataFrame(columns=["position", "stage", "chunk", "dur_ns"])
    layout = account.trace.layout
    if layout is None or layout.pp < 2 or layout.vpp < 2:
        return empty
    spans = account.windows.select(account.trace.frame("span"))
    spans = spans[spans["kind"].isin(_PASSES) & (spans["stage"] >= 0)]
    if spans["stage"].nunique() != layout.pp * layout.vpp:
        return empty
    position = spans["rank"].map(account.stage)
    steps = len(account.windows.steps)
    keys = [position.rename("position"), spans["stage"], spans["chunk"], spans["rank"]]
    per_rank = spans["dur_ns"].groupby(keys).sum() / steps
    names = ["position", "stage", "chunk"]
    return per_rank.groupby(level=names).median().rename("dur_ns").reset_index()
