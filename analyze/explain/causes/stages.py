"""Unequal pipeline stages: the embedding stage, the output head, and any other.

Where the ranks of a host are a whole stage, a heavy stage and a slow host leave the same record. The two have two repairs, and each has a price of its own: layers move to the other stages, which keeps
the work, while a slow host gets as fast as the others, which takes its excess away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.results import Where
from ...tables.trace import Trace
from ..replay.effect_folding import EdgeEffect
from ..replay.program import Program
from .effects import PASSES, Work, sums_of_steps
from .kinds_of_steps import kinds_of_steps
from .passes import Passes, edge_of_pieces
from .shapley_player import Player, Union, spread


def host_of_stage(trace: Trace, stage_of: Mapping[int, int], stage: int) -> str | None:
    """Return the host that runs all captured ranks of a stage and no others; None if there is none.

    Where all ranks are on one host it is none either: the other stages show how fast it is.
    """
    host_of = {rank: trace.clock_of(rank) for rank in stage_of if rank in trace.clocks}
    members = {rank for rank, own in stage_of.items() if own == stage}
    hosts = {host_of.get(rank, "") for rank in members}
    if len(hosts) != 1 or "" in hosts or len(set(host_of.values())) < 2:
        return None
    (host,) = hosts
    return host if {rank for rank, own in host_of.items() if own == host} == members else None


def as_slow_host(
    trace: Trace, work: Work, compute: FloatArray, stage: IntArray, heavy: int
) -> EdgeEffect | None:
    """Return what a heavy stage takes longer if its host is slow; None where no host is the stage.

    A stage that is heavy in some steps is compared with its other steps, because layers do not come
    and go; one that is heavy in all of them, with the median of the other stages.

    Args:
        trace: Which host runs a rank.
        work: The recorded work.
        compute: What each cell computes without slow ranks and jitter, ns.
        stage: The stage of each cell.
        heavy: The stage.
    """
    if host_of_stage(trace, work.stage, heavy) is None:
        return None
    cells = work.cells[["rank", "step"]].assign(compute=compute, stage=stage)
    per_step = cells.groupby(["stage", "rank", "step"])["compute"].sum()
    kind = kinds_of_steps(per_step)[heavy]
    by_stage = per_step.groupby(level=["stage", "step"]).median().unstack("stage")
    own = by_stage[heavy]
    if kind.any():
        usual = pd.Series(own[kind == 0].median(), own.index).where(kind > 0, own)
    else:
        usual = by_stage.drop(columns=heavy).median(axis=1)
    excess_frac = (1.0 - usual / own).clip(lower=0.0).fillna(0.0)
    of_cell = excess_frac.reindex(cells["step"]).to_numpy()
    return spread(work, np.where(stage == heavy, compute * of_cell, 0.0))


def stage_players(
    trace: Trace, program: Program, passes: Passes, work: Work, reference: FloatArray
) -> Iterator[Player]:
    """Yield the heavy stages: the first, the last, and all between them, each with its excess.

    The centre of a stage is the median over its ranks of their usual compute per step;
    equal stages would each have the mean of the centres, for the work stays the
    same and only moves. A stage whose steps are of two kinds, heavy ones and others, has
    a centre for each kind. Repairing a heavy stage moves its excess to the light ones:
    of what these lack, it fills the part that its excess is of all excess. Nothing
    with one stage, or where a stage has no compute on record.

    Where ranks hold several chunks of the model, these are compared pass by pass: a heavy
    chunk delays its own passes, and a light one on the same rank does not make up for it.

    Args:
        trace: The capture.
        program: The replay graph.
        passes: Its passes, and which part of each was computing.
        work: The recorded work by cell.
        reference: That work with the slow ranks repaired and without jitter, ns per cell.
    """
    stage = np.asarray(work.cells["rank"].map(work.stage), dtype=np.int64)
    scale = _scale(work, reference)
    compute = work.cells["compute_ns"] * scale
    found = _excess_of_chunks(trace, program, passes, work, scale)
    if found is None:
        found = _excess_of_stages(work, compute, stage)
    if found is None:
        return
    whole, is_heavy = found
    surplus = pd.Series(np.where(is_heavy, whole, 0.0)).groupby(stage).sum()
    first, last = int(stage.min()), int(stage.max())
    inner = [int(s) for s in surplus.index if s not in (first, last)]
    for members in ([first], [last], inner):
        own = surplus.reindex(members)
        if not len(own) or own.sum() <= 0:
            continue
        lifted = np.where(is_heavy, 0.0, whole * (own.sum() / surplus.sum()))
        taken = np.where(np.isin(stage, members) & is_heavy, whole, 0.0)
        heaviest = int(own.index.to_numpy()[own.to_numpy().argmax()])
        effect = spread(work, taken + lifted)
        as_host = as_slow_host(trace, work, compute.to_numpy(), stage, heaviest)
        where: Where = {"stage": heaviest}
        yield Player("stage_imbalance", where, Union.STAGES, effect, as_host=as_host)


def _scale(work: Work, reference: FloatArray) -> FloatArray:
    """Return the reference over the recorded work of each cell."""
    recorded = work.cells["work_ns"].to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(recorded > 0, reference / recorded, 0.0)


def _unslowed(work: Work) -> FloatArray:
    """Return what is left of each cell's computing without the cost of a slow clock, as a share."""
    clock = work.cells["clock_ns"].to_numpy()
    whole = work.cells["compute_ns"].to_numpy() + clock
    return 1.0 - clock / np.where(whole > 0, whole, 1.0)


class _Excess(NamedTuple):
    """What cells compute more than if all stages were equal."""

    ns: FloatArray
    is_heavy: BoolArray
    """Whether that is taken away; of the others, it is what the light stages lack."""


def _excess_of_stages(work: Work, compute: pd.Series, stage: IntArray) -> _Excess | None:
    """Return what each cell computes more than with equal stages.

    Forward passes are compared with forward passes, backward passes with their like, and so is what else is
    computed, such as the optimizer. None where stages cannot be compared.
    """
    if not len(stage) or stage.min() < 0 or stage.min() == stage.max():
        return None
    cells = work.cells[["rank", "step"]].assign(stage=stage)
    parts = {name: compute * frac for name, frac in _parts(work)}
    of_rank = sums_of_steps(cells, "stage", **{name: own.to_numpy() for name, own in parts.items()})
    kinds = kinds_of_steps(of_rank.sum(axis="columns"))
    by_part = pd.concat({name: of_rank[name] for name in parts}, names=["part"])
    centre = pd.DataFrame(_centres(by_part, kinds).unstack("part"))[list(parts)]
    whole = centre.sum(axis="columns")
    if not (whole > 0).all():
        return None
    mean = centre.groupby(level="step").transform("sum") / whole.index.unique("stage").size
    excess = centre - mean
    excess_frac = (excess / centre.where(centre > 0)).fillna(0.0)
    place = whole.index.get_indexer(pd.MultiIndex.from_frame(cells[["stage", "step"]]))
    of_cell = excess_frac.to_numpy(np.float64)[place]
    ns = sum(part.to_numpy() * of_cell[:, at] for at, part in enumerate(parts.values()))
    is_heavy = excess.sum(axis="columns") > 0
    return _Excess(np.asarray(ns), is_heavy.to_numpy(np.bool_)[place])


def _parts(work: Work) -> Iterator[tuple[str, pd.Series]]:
    """Yield each kind of computing, and which part of each cell's it is."""
    for direction in PASSES:
        yield direction, work.cells[direction]
    forward, backward = (work.cells[name] for name in PASSES)
    yield "other", 1.0 - (forward + backward)


def _excess_of_chunks(
    trace: Trace, program: Program, computing: Passes, work: Work, scale: FloatArray
) -> _Excess | None:
    """Return the same where ranks hold several chunks; None where the passes do not tell them.

    A pass of a chunk takes the median over the ranks of its stage of their median passes;
    equal chunks would take the mean of that.
    """
    if trace.layout is None or trace.layout.vpp < 2 or trace.layout.pp < 2:
        return None
    spans = computing.spans.copy()
    if spans["chunk"].nunique() < trace.layout.vpp:
        return None
    pieces = computing.pieces
    cell = work.cell[edge_of_pieces(program, pieces)]
    compute = pieces["dur_ns"].to_numpy() * (scale * _unslowed(work))[cell]
    spans["compute_ns"] = np.bincount(pieces["span"], weights=compute, minlength=len(spans))
    spans["stage"] = spans["rank"].map(work.stage)
    keys = ["stage", "chunk"]
    # A pass may be several spans: the loss of the last stage is one of its own.
    whole = [*keys, "kind", "rank", "step", "microbatch"]
    passes = spans.groupby(whole)["compute_ns"].sum()
    per_step = passes.groupby(level=[*keys, "rank", "step"]).sum()
    mean_pass = passes.groupby(level=[*keys, "kind", "rank", "step"]).mean()
    centre = _centres(mean_pass, kinds_of_steps(per_step))
    if not (centre > 0).all():
        return None
    excess_frac = 1.0 - centre.groupby(level=["kind", "step"]).transform("mean") / centre
    of_span = excess_frac.reindex(pd.MultiIndex.from_frame(spans[[*keys, "kind", "step"]]))
    weights = compute * of_span.to_numpy()[pieces["span"]]
    excess = np.bincount(cell, weights=weights, minlength=len(work.cells)).astype(np.float64)
    return _Excess(excess, excess > 0)


def _centres(per_step: pd.Series, kinds: pd.Series) -> pd.Series:
    """Return what a place takes in each step: of its steps of that kind, the median over its ranks.

    Of each rank by its median step: a pause is not the stage's.

    Args:
        per_step: What each rank takes, by place, whatever else, rank and step.
        kinds: The kind of each step, by place and step.
    """
    names = [str(name) for name in per_step.index.names if name != "rank"]
    others = [name for name in names if name != "step"]
    table = per_step.rename("ns").reset_index()
    table["step_kind"] = kinds.reindex(
        pd.MultiIndex.from_frame(table[list(kinds.index.names)])
    ).to_numpy()
    of_rank = table.groupby([*others, "step_kind", "rank"])["ns"].median()
    centre = of_rank.groupby(level=[*others, "step_kind"]).median().rename("ns")
    steps = table.drop_duplicates(names)[[*names, "step_kind"]]
    found: pd.Series = steps.join(centre, on=[*others, "step_kind"]).set_index(names)["ns"]
    return found
