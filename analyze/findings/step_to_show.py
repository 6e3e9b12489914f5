"""Which step to look at, and what a step that is not analysed lacks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import MeshscopeError

from ..align.steps.windows import WHOLE_CAPTURE
from ..explain.run_account import Account
from ..tables.results import Finding, Where
from ..tables.trace import Trace
from ..wording.message import Message, message
from ..wording.words import place_words
from .ordered import find
from .rules.ended import how_it_ended


class StepToShow(NamedTuple):
    """One of the analysed steps, and why it is this one."""

    step: int
    because: Message | None


def step_to_show(account: Account, length_ns: pd.Series) -> StepToShow:
    """Return the step of median length: of those that the first finding with any names.

    What comes and goes is not on the path of the steps in which it was away. A capture without
    step marks is its own one step.

    Args:
        account: The measured run.
        length_ns: How long each analysed step is.
    """
    if not account.windows.has_marks:
        return StepToShow(WHOLE_CAPTURE, None)
    first = next((finding for finding in find(account) if finding.steps), None)
    named = length_ns if first is None else length_ns[length_ns.index.isin(first.steps)]
    if first is None or len(named) in (0, len(length_ns)):
        return StepToShow(_median(length_ns), message("shown_step.median"))
    what = _name(first)
    because = message("shown_step.median_of_finding", count=len(named), finding=what)
    if len(named) == 1:
        because = message("shown_step.only_one", finding=what)
    return StepToShow(_median(named), because)


def _median(length_ns: pd.Series) -> int:
    order = np.argsort(length_ns.to_numpy(), kind="stable")
    return int(length_ns.index[order[(len(order) - 1) // 2]])


def _name(finding: Finding) -> Message:
    where: Where = {**finding.where}
    where.pop("steps", None)
    where.pop("host", None)
    if not place_words(where):
        return message("cause.name", kind=finding.kind.value)
    return message("cause.name_at", kind=finding.kind.value, where=where)


def not_analysed(account: Account, step: int) -> MeshscopeError:
    """Return why a step has no path: it never ended, it is left out, or it is not there."""
    trace, steps = account.trace, account.windows.steps
    where = str(trace.path)
    analysed = message("advice.analysed_steps", first=steps[0], last=steps[-1])
    if not account.windows.has_marks:
        return MeshscopeError(message("refused.no_step_marks"), where=where)
    ended = trace.frame("step")
    ended_on = ended.loc[ended["step"] == step, "rank"].nunique()
    if ended_on == len(trace.ranks):
        return MeshscopeError(
            message("refused.step_left_out", step=step),
            where=where,
            remedy=message("advice.left_out_steps", analysed=analysed),
        )
    begun_on = _begun_on(trace, step)
    if not begun_on:
        return MeshscopeError(
            message("refused.step_not_analysed", step=step), where=where, remedy=analysed
        )
    ranks = len(trace.ranks)
    what = message("refused.step_ended_on_none", step=step, ranks=ranks)
    if ended_on:
        what = message("refused.step_ended_on_some", step=step, ended_on=ended_on, ranks=ranks)
    hang = next(how_it_ended(trace, account.windows.step_time_ns), None)
    if hang is None:
        return MeshscopeError(what, where=where, remedy=analysed)
    known = message("advice.hang_and_steps", hang=hang.claim, analysed=analysed)
    return MeshscopeError(what, where=where, remedy=known)


def _begun_on(trace: Trace, step: int) -> int:
    """Return on how many ranks anything of a step was recorded."""
    ranks: set[int] = set()
    for name in ("span", "collective", "p2p", "step"):
        frame = trace.frame(name)
        ranks.update(frame.loc[frame["step"] == step, "rank"].tolist())
    return len(ranks)
