"""Changes that keep the program: what they take from the edges of the replay graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import ConfigError

from ...tables.arrays import FloatArray
from ...tables.results import Where
from ...wording.message import Message, message
from ..causes import (
    HOST_CAUSES,
    Passes,
    Player,
    SlowParts,
    Suspect,
    excess_of_program,
    expected_of,
    find_players,
    named_place,
    of_single_ranks,
    sequence_effect,
    without_slow_clocks,
)
from ..causes.effects import Expected, Work, among_healthy, peer_centre, place_work
from ..causes.stages import host_of_stage
from ..replay.program import Program
from ..run_account import Account
from ..slow_ranks.suspicion import steps_of_slow
from ..suspects import healthy_work
from .changes import TRANSFERS, Change
from .transfer_model import TransferModel, transfer_model
from .transfers import TRANSFER_NOTES, transfer_effect

_OF_RANKS = ("straggler_rank", "clock_throttle")
"""Kinds of causes that make single ranks slow."""
_COLUMN = {"group": "group_id", "link": "link", "axis": "axis"}
"""Where the events name a place of communication."""


class Repair(NamedTuple):
    """What changes take from a run."""

    taken_ns: FloatArray
    """From every edge of the replay graph, ``(edges,)``."""
    stalls: tuple[str, ...]
    """Classes of the ledger that are gone altogether."""
    notes: tuple[Message, ...]
    """What to say of it."""
    bounds_ns: tuple[FloatArray, ...] = ()
    """The same with the least and the largest fixed time of transfers, where changes depend on it."""


def repair_effect(account: Account, program: Program, changes: Iterable[Change]) -> Repair:
    """Return what the changes take from the run.

    Repairs come first; speed-ups scale what these leave.

    Raises:
        ConfigError: A place is not in the run, or cannot be compared with others.
    """
    changes = list(changes)
    check_places(account, changes)
    fixes = [change for change in changes if change.is_fix]
    trace, ledger = account.trace, account.ledger
    recorded = place_work(trace, program, ledger)
    work, clocks = without_slow_clocks(recorded, program, ledger, account.devices)
    suspects = _suspects(account, work, fixes)
    known = set(account.suspects())
    unlike = [rank for own in suspects for rank in own.ranks if rank not in known]
    unlike += [rank for clock in clocks for rank in clock.ranks]
    detection = None
    if account.attribution is not None:
        detection = account.attribution.detection
        unlike += account.attribution.unlike
    slow_steps = steps_of_slow(unlike, detection)
    computing = Passes(trace, program.windows, ledger)
    sequence = sequence_effect(trace, program, computing, work, slow_steps)
    expected = _healthy(account, work, expected_of(peer_centre(work), sequence))
    expected = among_healthy(work, expected, [rank for own in suspects for rank in own.ranks])
    wires = None if account.attribution is None else account.attribution.wires
    if wires is None:
        wires = excess_of_program(trace, program)
    slow = SlowParts(suspects, of_single_ranks(clocks, program), wires)
    players, overlaps = find_players(trace, program, computing, work, expected, slow)
    taken = np.zeros(program.edge_count)
    players += _named_places(account, program, players, fixes)
    hosts = _slow_hosts(account, players, fixes)
    others = [own for own in fixes if own.value not in hosts]
    chosen, notes = _chosen(account, players, others)
    notes += [*_of_hosts(hosts), *_alike(work, _wanted_ranks(account, others))]
    for number in chosen:
        players[number].effect.add_to(taken)
    for number in set(hosts.values()) - chosen:
        effect = players[number].as_host
        if effect is not None:
            effect.add_to(taken)
    for overlap in overlaps:
        if chosen.issuperset(overlap.players):
            overlap.given_back.add_to(taken)
    bounds = _set(account, program, changes, taken)
    notes += _transfer_notes(changes)
    if any(change.name.startswith("link.") for change in changes):
        notes.append(message("whatif.faster_link"))
    kinds = {players[number].kind for number in chosen} & HOST_CAUSES.keys()
    stalls = tuple(name for kind in sorted(kinds) for name in HOST_CAUSES[kind])
    return Repair(bounds[0], stalls, tuple(notes), tuple(bounds[1:]))


def _set(
    account: Account, program: Program, changes: list[Change], repaired: FloatArray
) -> list[FloatArray]:
    """Return what repairs and settings take from every edge: usual, then by the bounds of fixed times."""
    settings = [change for change in changes if not change.is_fix]
    models: list[TransferModel | None] = [None]
    if any(change.name in TRANSFERS for change in settings):
        usual = transfer_model(account, program)
        models = [usual, *(usual.with_fixed(fixed) for fixed in (usual.low_ns, usual.high_ns))]
    found = []
    for model in models:
        taken = repaired.copy()
        for change in settings:
            left = program.base_ns - taken
            if model is not None and change.name in TRANSFERS:
                taken += transfer_effect(model, program, left, change)
            else:
                taken += left * _sped_up(program, change)
        found.append(taken)
    return found


def _transfer_notes(changes: list[Change]) -> list[Message]:
    kinds = [change.name.partition(".")[0] for change in changes if change.name in TRANSFERS]
    return [TRANSFER_NOTES[kind] for kind in dict.fromkeys(kinds)]


def _healthy(account: Account, work: Work, peers: Expected) -> Expected:
    """Return what each cell should have taken, as the attribution of the run has it."""
    attribution = account.attribution
    if attribution is None or attribution.at_first is None:
        return peers
    return healthy_work(work, attribution.at_first, peers, attribution.detection)


def _suspects(account: Account, work: Work, fixes: list[Change]) -> list[Suspect]:
    """Return the ranks that are to be repaired and those that were suspected anyhow.

    A rank that works no longer than its peers is none of them: it would be made slower.
    """
    wanted = _wanted_ranks(account, fixes)
    peers = _healthy(account, work, expected_of(peer_centre(work), None))
    is_alone = _excess(work, peers.work_ns, wanted)
    alone = [rank for rank in wanted if np.isnan(is_alone[rank])]
    if alone:
        raise ConfigError(
            message("refused.no_peer", rank=alone[0]),
            where="--fix",
            remedy=message("advice.fix_stage"),
        )
    known = set(account.suspects())
    slow = sorted({*wanted, *known})
    excess = _excess(work, among_healthy(work, peers, slow).work_ns, slow)
    ranks = [rank for rank in slow if rank in known or excess[rank] > 0]
    return [Suspect((rank,), {"rank": rank}, 0.0) for rank in ranks]


def _wanted_ranks(account: Account, fixes: list[Change]) -> list[int]:
    """Return the ranks that the fixes name, by number or by host."""
    wanted = set()
    for change in fixes:
        if change.name == "rank":
            wanted.add(_rank(account, change))
        elif change.name == "host":
            wanted.update(_ranks_of_host(account, change))
    return sorted(wanted)


def _excess(work: Work, expected_ns: FloatArray, ranks: list[int]) -> dict[int, float]:
    """Return how much longer than expected ranks work, ns; NaN of one of which nothing is expected."""
    excess = pd.Series(work.cells["work_ns"].to_numpy() - expected_ns)
    sums = excess.groupby(work.cells["rank"].to_numpy()).sum(min_count=1)
    return {rank: float(sums[rank]) for rank in ranks}


def _alike(work: Work, wanted: list[int]) -> list[Message]:
    """Return which ranks have nobody to be compared with but those that are to be repaired too."""
    members: dict[int, list[int]] = {}
    for rank, own_class in work.peer_class.items():
        members.setdefault(own_class, []).append(rank)
    same = [own for own in members.values() if len(own) > 1 and set(own) <= set(wanted)]
    return [message("whatif.alike", ranks=sorted(own)) for own in same]


def _rank(account: Account, change: Change) -> int:
    rank = change.whole()
    ranks = account.windows.ranks.tolist()
    if rank not in ranks:
        raise ConfigError(
            message("refused.no_rank", rank=rank),
            where="--fix",
            remedy=message("advice.captured", ranks=len(ranks), first=ranks[0], last=ranks[-1]),
        )
    return rank


def _ranks_of_host(account: Account, change: Change) -> list[int]:
    clocks = account.trace.clocks
    found = [rank for rank in account.windows.ranks.tolist() if clocks.get(rank) == change.value]
    if not found:
        hosts = sorted(set(clocks.values()))[:8]
        raise ConfigError(
            message("refused.no_host", host=change.value),
            where="--fix",
            remedy=message("advice.hosts", known=hosts) if hosts else message("advice.no_hosts"),
        )
    return found


def _chosen(
    account: Account, players: list[Player], fixes: list[Change]
) -> tuple[set[int], list[Message]]:
    """Return the positions of the players that the fixes repair, and which fix found none."""
    chosen: set[int] = set()
    notes = []
    for change in fixes:
        found = [n for n, player in enumerate(players) if _is_meant(account, player, change)]
        chosen.update(found)
        if not found:
            asked = f"{change.name}={change.value}" if change.value else change.name
            notes.append(message("whatif.no_loss", asked=asked))
    return chosen, notes


def _slow_hosts(account: Account, players: list[Player], fixes: list[Change]) -> dict[str, int]:
    """Return the named hosts that are a whole heavy stage, each with the position of its player."""
    named = {change.value for change in fixes if change.name == "host"}
    found = {}
    for number, player in enumerate(players):
        if player.as_host is not None:
            host = host_of_stage(account.trace, account.stage, player.where["stage"])
            if host in named:
                found[str(host)] = number
    return found


def _of_hosts(hosts: Iterable[str]) -> list[Message]:
    """Say what the repair of a host is that no other runs beside in its stage."""
    return [message("whatif.host_is_stage", host=host) for host in hosts]


def _named_places(
    account: Account, program: Program, players: list[Player], fixes: list[Change]
) -> list[Player]:
    """Return the links and groups that are to be repaired and are no causes of their own.

    They may be slow in too few steps for anything to be certain, or among many such places. What the
    repair of their whole axis takes is not taken twice.
    """
    frame, found = program.events, []
    whole = [change.value for change in fixes if change.name == "axis"]
    for change in fixes:
        if change.name not in ("link", "group"):
            continue
        names = _directions(change.value) if change.name == "link" else {change.value}
        column = frame[_COLUMN[change.name]].isin(names) & ~frame["axis"].isin(whole)
        if column.any() and not any(_is_meant(account, own, change) for own in players):
            where: Where = {"axis": str(frame.loc[column, "axis"].iloc[0])}
            where["link" if change.name == "link" else "group_id"] = change.value
            player = named_place(program, where, column.to_numpy(bool))
            found += [] if player.effect.is_nothing else [player]
    return found


def _is_meant(account: Account, player: Player, change: Change) -> bool:
    kind, where = player.kind, player.where
    name, value = change.name, change.value
    if name == "rank":
        return kind in _OF_RANKS and where["rank"] == change.whole()
    if name == "host":
        hosts = account.trace.clocks
        if kind == "slow_link":
            return where.get("host") == value
        return kind in _OF_RANKS and hosts.get(where["rank"]) == value
    if name == "stragglers":
        return kind in _OF_RANKS and where["rank"] in account.slow_ranks()
    if name == "stage":
        return kind == "stage_imbalance" and where["stage"] == change.whole()
    if name == "group":
        return where.get("group_id") == value
    if name == "link":
        return not _directions(value).isdisjoint(_directions(where.get("link", "")))
    if name == "axis":
        return kind in ("slow_wire", "slow_link") and where["axis"] == value
    return kind == name


def check_places(account: Account, changes: list[Change]) -> None:
    """Refuse a stage, group, link or axis that the run does not have; one that is healthy is fine.

    Raises:
        ConfigError: It is not there.
    """
    for change in changes:
        name, value = change.name, change.value
        if name.startswith("link.") or name in TRANSFERS:
            name, value = "axis", name.partition(".")[2]
        if name == "stage":
            value = str(change.whole())
            known = sorted({str(stage) for stage in account.stage.values() if stage >= 0}, key=int)
        elif name in _COLUMN:
            known = sorted(set(account.events.frame[_COLUMN[name]].unique()) - {""})
        else:
            continue
        if not (_directions(value) if name == "link" else {value}) <= set(known):
            raise ConfigError(
                message("refused.no_place", kind=name, name=value),
                where="--fix" if change.is_fix else "--set",
                remedy=message("advice.known", known=known[:12])
                if known
                else message("advice.none_known", kind=name),
            )


def _directions(link: str) -> set[str]:
    """Return the directions of a link, as the tables name them: two of ``0<->4``.

    What is wrong with a cable or a port often is so both ways, and is one place then.
    """
    source, both, target = link.partition("<->")
    return {f"{source}->{target}", f"{target}->{source}"} if both else {link}


def _sped_up(program: Program, change: Change) -> FloatArray:
    """Return the share of every edge that a speed-up takes away."""
    share = 1.0 - 1.0 / change.factor()
    taken = np.zeros(program.edge_count)
    if change.name == "compute":
        taken[: len(program.work_edges)] = share
        return taken
    axis = change.name.removeprefix("link.")
    on_axis = (program.events["axis"] == axis).to_numpy()[program.wire_event]
    taken[program.first_wire :] = np.where(on_axis, share, 0.0)
    return taken
