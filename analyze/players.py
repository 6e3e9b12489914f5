"""The causes of loss as players: what each of them adds to the edges of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .communication import CommunicationEvents
from .effects import Work, stage_centre
from .program import Program
from .replay import FloatArray
from .results import Where

WIRE_REFERENCE = 0.1
"""Quantile of the wire times of like operations that counts as an undisturbed wire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """One cause: its name, its place and what it adds to the edges of the graph."""

    kind: str
    where: Where
    effect_ns: FloatArray


def find_players(
    program: Program,
    work: Work,
    reference: FloatArray,
    suspects: list[int],
    events: CommunicationEvents,
) -> list[Player]:
    """Return all causes: suspected ranks, unequal stages, jitter, and wires by axis.

    Args:
        program: The replay graph.
        work: The recorded work by cell.
        reference: That work with the suspects repaired (``repaired_work``), ns per cell.
        suspects: Ranks that are players of their own.
        events: The communication events of the program.
    """
    recorded = work.cells["work_ns"].to_numpy()
    rank = work.cells["rank"].to_numpy()
    players = [
        Player(
            kind="straggler_rank",
            where={"rank": suspect},
            effect_ns=_on_edges(
                program, work, np.where(rank == suspect, recorded - reference, 0.0)
            ),
        )
        for suspect in suspects
    ]
    stage = _stage_effect(work, reference)
    if stage is not None:
        slowest, effect = stage
        where: Where = {"stage": slowest}
        players.append(
            Player(kind="stage_imbalance", where=where, effect_ns=_on_edges(program, work, effect))
        )
    jitter = reference - stage_centre(work, reference)
    players.append(Player(kind="jitter", where={}, effect_ns=_on_edges(program, work, jitter)))
    return players + _wire_players(program, events)


def repaired_work(work: Work, peer_ns: FloatArray, suspects: list[int]) -> FloatArray:
    """Return the work of every cell with the suspects replaced by their peers."""
    recorded = work.cells["work_ns"].to_numpy()
    replace = work.cells["rank"].isin(suspects).to_numpy() & ~np.isnan(peer_ns)
    return np.where(replace, peer_ns, recorded)


def _on_edges(program: Program, work: Work, cell_effect: FloatArray) -> FloatArray:
    """Spread an effect of cells over their work edges, in proportion to the recorded work."""
    total = work.cells["work_ns"].to_numpy()[work.cell]
    count = np.bincount(work.cell)[work.cell]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(total > 0, work.edge_work_ns / total, 1.0 / count)
    effect = np.zeros(program.edge_count)
    effect[: len(work.cell)] = part * cell_effect[work.cell]
    return effect


def _stage_effect(work: Work, reference: FloatArray) -> tuple[int, FloatArray] | None:
    """Return the slowest stage and what unequal stages add to each cell.

    The centre of a stage is the median over its ranks of their compute per step;
    equal stages would each have the mean of the centres. None with one stage, or
    where a stage has no compute on record.
    """
    cells = work.cells
    recorded = cells["work_ns"].to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        compute = cells["compute_ns"].to_numpy() * np.where(recorded > 0, reference / recorded, 0.0)
    frame = cells[["rank", "step"]].assign(compute=compute, stage=cells["rank"].map(work.stage))
    if frame["stage"].min() < 0 or frame["stage"].nunique() < 2:
        return None
    per_step = frame.groupby(["stage", "rank", "step"])["compute"].sum()
    centre = per_step.groupby(level=[0, 1]).mean().groupby(level=0).median()
    if not (centre > 0).all():
        return None
    scale = centre.mean() / centre
    effect = compute * (1.0 - frame["stage"].map(scale).to_numpy())
    slowest = int(centre.index.to_numpy()[centre.to_numpy().argmax()])
    return slowest, effect


def _wire_players(program: Program, events: CommunicationEvents) -> list[Player]:
    """Return one player an axis: wire time above that of undisturbed like operations."""
    frame = events.frame
    if frame.empty:
        return []
    like = frame.groupby(["axis", "kind", "size_bytes"])["wire_ns"]
    excess = (frame["wire_ns"] - like.transform("quantile", WIRE_REFERENCE)).clip(lower=0).fillna(0)
    event = program.marks["event"].to_numpy()[program.waits]
    axis = frame["axis"].to_numpy()[event]
    players = []
    for name in np.unique(axis):
        effect = np.zeros(program.edge_count)
        effect[-len(event) :] = np.where(axis == name, excess.to_numpy()[event], 0.0)
        if effect.any():
            where: Where = {"axis": str(name)}
            players.append(Player(kind="slow_wire", where=where, effect_ns=effect))
    return players
