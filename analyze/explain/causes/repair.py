"""What slow ranks would work if they were repaired.

They would take as long as their peers, and be as uneven: the centre of several ranks is smoother than
any of them, while ranks that wait for one another take the longest of each piece. A repaired rank
therefore deviates from the centre as a healthy peer does in another step, in its pieces and in its whole
steps, which may be late now and then::

    repaired piece = centre of n peers + (piece of a peer - centre of the other healthy ranks there)

With pieces of variance s^2 the centre differs from each of its peers by (1 - 1/n) s^2, and a peer from the
centre of others by about (1 + 1/n) s^2, so the repaired piece differs by 2 s^2, as two healthy ranks do.
The deviations of a peer are without their mean, so that the mean step is that of the centre, and have
its bad steps as far as the rank itself has such: one that never had any gets none. A peer
that has no other healthy rank beside it is compared with its own mean piece, in steps that are scaled to
its mean step, and its deviations are made larger by sqrt(1 + 1/n).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec.structs import replace

from ...tables.arrays import FloatArray
from ...tables.centres import without_outliers
from .effects import Expected, Work, by_step, peer_centre

MIN_ALIKE, MIN_STEPS = 0.5, 8
"""Correlation, over so many steps, from which two ranks are late together."""


def repaired_work(work: Work, expected: Expected, slow: Sequence[int], draw: int = 0) -> FloatArray:
    """Return the work of every cell with the slow ranks repaired, ns.

    Args:
        work: The recorded work.
        expected: What each cell would have taken on a healthy rank.
        slow: The slow ranks; of one that nothing can be expected of the recorded work stays.
        draw: Which of its peers, and which of their steps, a slow rank is as uneven as: of n peers they
            all have their turn in n draws, then with the next of their steps.
    """
    repaired = work.cells["work_ns"].to_numpy(np.float64).copy()
    is_slow = work.cells["rank"].isin(slow).to_numpy()
    rows = np.flatnonzero(is_slow & ~np.isnan(expected.work_ns))
    if not len(rows):
        return repaired
    centre = expected.work_ns[rows]
    own, rows_of = _of_their_classes(work, slow)
    unequal_ns = None if expected.unequal_ns is None else expected.unequal_ns[rows_of]
    there = expected._replace(work_ns=expected.work_ns[rows_of], unequal_ns=unequal_ns)
    uneven = _unevenness(own, there, slow, np.searchsorted(rows_of, rows), draw)
    repaired[rows] = np.maximum(centre + uneven, 0.0)
    return repaired


def _of_their_classes(work: Work, slow: Sequence[int]) -> tuple[Work, npt.NDArray[np.int64]]:
    """Return the work of those that slow ranks are compared with in any step, and its rows among all."""
    usual = {work.peer_class[rank] for rank in slow}
    ranks = [rank for rank, own in work.peer_class.items() if own in usual]
    is_own = work.cells["rank"].isin(ranks).to_numpy()
    peers = work.cells["peer_class"].to_numpy()
    rows = np.flatnonzero(is_own | np.isin(peers, np.unique(peers[is_own])))
    return replace(work, cells=work.cells.iloc[rows].reset_index(drop=True)), rows


def _unevenness(
    work: Work, expected: Expected, slow: Sequence[int], rows: npt.NDArray[np.int64], draw: int
) -> FloatArray:
    """Return by what cells of slow ranks would differ from the centre; 0 where no peer tells it."""
    centre = peer_centre(work, expected.unequal_ns, slow)
    models = _models(work, set(slow), centre, draw)
    models["bad"] = _bad_as_own(work, expected, centre, models["peer"])
    own = work.cells[["rank", "step", "interval", "peer_class"]].iloc[rows]
    own = own.reset_index(drop=True).join(models, on="rank", how="inner")
    places = own.index.to_numpy()
    deviations = _deviations(work, expected, centre, np.unique(models["peer"]))
    steps = deviations.drop_duplicates(["peer", "peer_class", "step"])
    steps = steps[["peer", "peer_class", "step"]].sort_values(["peer", "peer_class", "step"])
    of_class = steps.groupby(["peer", "peer_class"])["step"]
    steps = steps.assign(number=of_class.cumcount(), count=of_class.transform("size"))
    own = own.merge(steps, how="left", on=["peer", "peer_class", "step"])
    own["number"] = (own["number"] + own["after"]) % own["count"]
    names = ["peer", "peer_class", "number", "interval"]
    deviations = deviations.merge(steps, on=["peer", "peer_class", "step"])[
        [*names, "ns", "bad_ns"]
    ]
    found = own[[*names, "bad"]].merge(deviations, how="left", on=names)
    uneven = np.zeros(len(rows))
    uneven[places] = np.nan_to_num((found["ns"] + found["bad"] * found["bad_ns"]).to_numpy())
    return uneven


def _models(work: Work, slow: set[int], centre: FloatArray, draw: int) -> pd.DataFrame:
    """Return whose unevenness each slow rank gets: ``peer``, and how many steps ``after``.

    That of the same step where a peer is late in the same steps as the rank is, as one of its host.
    Else no two get the same steps: ranks that were slow alike wait for one another when they are repaired.
    """
    healthy = healthy_peers(work, slow)
    late = by_step(work, np.nan_to_num(work.cells["work_ns"].to_numpy() - centre))
    taken: dict[int, int] = {}
    models = {}
    for rank in sorted(slow):
        own_class = work.peer_class[rank]
        if own_class not in healthy:
            continue
        together = _late_together(late, rank, healthy[own_class])
        if together is not None:
            models[rank] = (together, 0)
        else:
            number = taken[own_class] = taken.get(own_class, -1) + 1
            peers = healthy[own_class]
            models[rank] = (peers[(number + draw) % len(peers)], number + 1 + draw // len(peers))
    columns = ["peer", "after"]
    return pd.DataFrame.from_dict(models, orient="index", columns=columns, dtype=np.int64)


def healthy_peers(work: Work, slow: Collection[int]) -> dict[int, list[int]]:
    """Return the ranks of each class that are not slow; no class of which all are."""
    healthy: dict[int, list[int]] = {}
    for rank, own_class in work.peer_class.items():
        if rank not in slow:
            healthy.setdefault(own_class, []).append(rank)
    return healthy


def _bad_as_own(work: Work, expected: Expected, centre: FloatArray, peer: pd.Series) -> pd.Series:
    """Return what share of the bad steps of its peer each rank has, at most 1.

    Args:
        work: The recorded work.
        expected: What each cell would have taken on a healthy rank.
        centre: What the healthy peers of each cell's rank worked; NaN without.
        peer: The peer of each rank.
    """
    ns = work.cells["work_ns"].to_numpy(np.float64)
    alone = ns if expected.unequal_ns is None else ns - expected.unequal_ns
    beyond = by_step(work, np.where(np.isnan(centre), alone, ns - centre))
    length = by_step(work, ns).to_numpy().T.ravel()
    own, rank = beyond.to_numpy().T.ravel(), np.repeat(beyond.columns, len(beyond))
    bad_ns = np.maximum(own - without_outliers(own, rank, usual=length), 0.0)
    bad = pd.Series(bad_ns.reshape(beyond.shape[::-1]).sum(axis=1), index=beyond.columns)
    of_peer = peer.map(bad)
    share: pd.Series = (bad.reindex(peer.index) / of_peer.where(of_peer > 0)).clip(0.0, 1.0)
    return share.fillna(1.0)


def _late_together(late: pd.DataFrame, rank: int, peers: list[int]) -> int | None:
    """Return the peer that is late in the same steps as a rank, None if there is none."""
    own = late[[rank, *peers]].to_numpy(np.float64)
    own = own - own.mean(axis=0)
    size = np.sqrt((own**2).sum(axis=0))
    if len(late) < MIN_STEPS or size[0] == 0:
        return None
    alike = own[:, 0] @ own[:, 1:] / (size[0] * np.where(size[1:] > 0, size[1:], np.inf))
    best = int(alike.argmax())
    return peers[best] if alike[best] >= MIN_ALIKE else None


def _deviations(
    work: Work, expected: Expected, centre: FloatArray, peers: npt.NDArray[np.int64]
) -> pd.DataFrame:
    """Return by what healthy ranks deviate: peer, peer_class, step, interval, ns, bad_ns.

    The last is what bad steps of the peer add; without it the others are in ``ns``.

    Args:
        work: The recorded work.
        expected: What each cell would have taken on a healthy rank.
        centre: What the healthy peers of each cell's rank worked.
        peers: The ranks that are asked for.
    """
    rows = np.flatnonzero(work.cells["rank"].isin(peers).to_numpy())
    table = work.cells[["rank", "peer_class", "step", "interval"]].iloc[rows]
    table = table.rename(columns={"rank": "peer"})
    ns = work.cells["work_ns"].iloc[rows].astype(np.float64)
    others = pd.Series(centre[rows], index=ns.index)
    if expected.unequal_ns is not None:
        ns, others = ns - expected.unequal_ns[rows], others - expected.unequal_ns[rows]
    beyond = (ns - others).fillna(_from_own_mean(work, table, ns))
    bad = _bad_part(table, beyond, ns)
    place = [table[name] for name in ("peer", "peer_class", "interval")]
    parts = {"ns": beyond - bad, "bad_ns": bad}
    return table.assign(
        **{name: part - part.groupby(place).transform("mean") for name, part in parts.items()}
    )


def _bad_part(table: pd.DataFrame, beyond: pd.Series, ns: pd.Series) -> pd.Series:
    """Return what of the deviations of ranks is theirs in bad steps, by what these exceed their others.

    Args:
        table: peer, peer_class and step of each cell.
        beyond: By what it deviates, ns.
        ns: What it took.
    """
    step = np.asarray(table.groupby(["peer", "peer_class", "step"]).ngroup(), dtype=np.int64)
    steps = table.groupby(["peer", "peer_class", "step"]).size().index
    peer, peers = (steps.get_level_values(n).to_numpy(np.int64) for n in ("peer", "peer_class"))
    total, length = (
        np.bincount(step, own, len(steps)).astype(np.float64, copy=False) for own in (beyond, ns)
    )
    bad = np.maximum(total - without_outliers(total, peers, peer, usual=length), 0.0)
    share = np.divide(bad, total, out=np.zeros(len(steps)), where=bad > 0)
    return beyond * share[step]


def _from_own_mean(work: Work, table: pd.DataFrame, ns: pd.Series) -> pd.Series:
    """Return by what the pieces of ranks deviate from their mean ones, in steps of the mean length."""
    size = Counter(work.peer_class.values())
    usual_ns = ns.groupby([table[name] for name in ("peer", "peer_class", "interval")]).transform(
        "mean"
    )
    step = [table[name] for name in ("peer", "peer_class", "step")]
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = usual_ns.groupby(step).transform("sum") / ns.groupby(step).transform("sum")
    others = table["peer"].map(lambda peer: max(size[work.peer_class[peer]] - 1, 1))
    wider: pd.Series = (ns * scale - usual_ns) * np.sqrt(1.0 + 1.0 / others)
    return wider
