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
    for kind in (_BACKWARD, _FORWARD):
        usual = _usual(counts, kind)
        own = counts[counts["step"].isin(usual.index)]
        differs = own[own[kind].ne(own["step"].map(usual))]
        if len(differs):
            return _first(own, differs, usual, kind)
    return None


def _usual(counts: pd.DataFrame, kind: str) -> pd.Series[int]:
    """Return how many passes most ranks made, by step; nothing of steps in which two numbers are as frequent."""
    sizes = counts.groupby(["step", kind]).size().rename("ranks").reset_index()
    top = sizes[sizes["ranks"] == sizes.groupby("step")["ranks"].transform("max")]
    return top[~top["step"].duplicated(keep=False)].set_index("step")[kind]


def _counts(trace: Trace) -> pd.DataFrame | None:
    """Return step, rank and numbers of passes, of the steps that all ranks recorded in full; None without any."""
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
    whole = counted.reindex(index=keys, columns=[_FORWARD, _BACKWARD]).fillna(0).astype("int64")
    return whole.reset_index()


def _first(
    counts: pd.DataFrame, differs: pd.DataFrame, usual: pd.Series[int], kind: str
) -> PassesApart:
    first = differs.sort_values(["step", "rank"]).iloc[0]
    step, passes = int(first["step"]), [_FORWARD, _BACKWARD]
    at = counts[counts["step"] == step]
    alike = at.loc[(at[passes] == first[passes]).all(axis="columns"), "rank"]
    rest = at[at[kind] == usual[step]].iloc[0]
    return PassesApart(
        step=step,
        steps=int(differs["step"].nunique()),
        ranks=tuple(map(int, alike)),
        own=Passes(*map(int, first[passes])),
        usual=Passes(*map(int, rest[passes])),
    )
