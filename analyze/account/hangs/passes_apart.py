"""Steps in which ranks made other numbers of passes than the rest: a skipped backward pass, unlike accumulation.

Who skips a pass, as for a bad sample, may go on and end in order. The others then wait in the end for what it never
issues, and no operation tells why. The passes do, as far as that step was recorded.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from meshscope.probe.schema.terms import SpanKind, StepDetail

from ...tables.trace import Trace

_FORWARD, _BACKWARD = SpanKind.FORWARD.value, SpanKind.BACKWARD.value


class Passes(NamedTuple):
    """How many passes a rank made in a step."""

    forward: int
    backward: int


class PassesApart(NamedTuple):
    """Ranks that made other numbers of passes in a step than most."""

    step: int
    """The first one of these."""
    steps: int
    """In how many steps any rank did."""
    ranks: tuple[int, ...]
    """Those of the first step that made the same."""
    own: Passes
    usual: Passes


def passes_apart(trace: Trace) -> PassesApart | None:
    """Return in which step ranks first made other numbers of passes than most; of backward ones, if there are such.

    None where all agree, no majority does, or stages of a pipeline make unlike passes by design.
    """
    counts = _counts(trace)
    if counts is None:
        return None
    for kinds in ([_BACKWARD], [_FORWARD]):
        code = counts[kinds[0]].unstack("rank")
        usual = code.mode(axis="columns")
        # Two numbers that are as frequent leave it open who is wrong.
        is_plain = usual.notna().sum(axis="columns") == 1
        differs = code.ne(usual[0], axis="index") & is_plain.to_numpy()[:, None]
        steps = code.index[differs.any(axis="columns")]
        if len(steps):
            return _first(counts, differs, usual[0], len(steps), kinds[0])
    return None


def _counts(trace: Trace) -> pd.DataFrame | None:
    """Return the numbers of passes by step and rank, of the steps that all ranks recorded in full; None without any."""
    if trace.layout is not None and trace.layout.pp > 1:
        return None
    steps, spans = trace.frame("step"), trace.frame("span")
    steps = steps[~steps["detail"].isin([StepDetail.STEPS.value])]
    everywhere = steps.groupby("step")["rank"].nunique()
    common = everywhere.index[everywhere == len(trace.ranks)]
    passes = spans[spans["kind"].isin([_FORWARD, _BACKWARD]) & spans["step"].isin(common)]
    if passes.empty or len(trace.ranks) < 3:
        return None
    keys = pd.MultiIndex.from_product([common, trace.ranks], names=["step", "rank"])
    counted = passes.groupby(["step", "rank", passes["kind"].astype(str)]).size().unstack("kind")
    return counted.reindex(index=keys, columns=[_FORWARD, _BACKWARD]).fillna(0).astype("int64")


def _first(
    counts: pd.DataFrame, differs: pd.DataFrame, usual: pd.Series, steps: int, kind: str
) -> PassesApart:
    step = differs.index[differs.any(axis="columns")][0]
    odd = differs.columns[differs.loc[step]]
    at = counts.loc[step]
    own = at.loc[odd[0]]
    alike = at.index[(at == own).all(axis="columns")]
    rest = at[at[kind] == usual[step]].iloc[0]
    return PassesApart(
        step=int(step),
        steps=steps,
        ranks=tuple(map(int, alike)),
        own=Passes(int(own[_FORWARD]), int(own[_BACKWARD])),
        usual=Passes(int(rest[_FORWARD]), int(rest[_BACKWARD])),
    )
