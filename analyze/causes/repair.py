"""What slow ranks would work if they were repaired.

They would take as long as their peers, and be as uneven: the centre of several ranks is smoother than
any of them, while ranks that wait for one another take the longest of each piece. A repaired rank
therefore spreads the work of a step over its pieces as a healthy peer does in another step::

    repaired piece = centre of n peers + sqrt(1 + 1/n) (piece of a peer - its mean piece there)

with the pieces of that peer scaled to its mean step, so that steps keep the sum of the centre. With
pieces of variance s^2 the centre differs from each of its peers by (1 - 1/n) s^2, so the repaired piece
differs by 2 s^2, as two healthy ranks do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..arrays import FloatArray
from .effects import Expected, Work


def repaired_work(work: Work, expected: Expected, slow: Sequence[int]) -> FloatArray:
    """Return the work of every cell with the slow ranks repaired, ns.

    Args:
        work: The recorded work.
        expected: What each cell would have taken on a healthy rank.
        slow: The slow ranks; of one that nothing can be expected of the recorded work stays.
    """
    repaired = work.cells["work_ns"].to_numpy(np.float64).copy()
    is_slow = work.cells["rank"].isin(slow).to_numpy()
    rows = np.flatnonzero(is_slow & ~np.isnan(expected.work_ns))
    centre = expected.work_ns[rows]
    repaired[rows] = np.maximum(centre + _unevenness(work, expected, slow, rows), 0.0)
    return repaired


def _unevenness(
    work: Work, expected: Expected, slow: Sequence[int], rows: npt.NDArray[np.int64]
) -> FloatArray:
    """Return by what cells of slow ranks would differ from the centre; 0 where no peer tells it."""
    models = _models(work, set(slow))
    own = work.cells[["rank", "step", "interval", "peer_class"]].iloc[rows]
    own = own.reset_index(drop=True).join(models, on="rank", how="inner")
    places = own.index.to_numpy()
    told = _deviations(work, expected, np.unique(models["peer"]))
    steps = told.drop_duplicates(["peer", "peer_class", "step"])
    steps = steps[["peer", "peer_class", "step"]].sort_values(["peer", "peer_class", "step"])
    of_class = steps.groupby(["peer", "peer_class"])["step"]
    steps = steps.assign(number=of_class.cumcount(), count=of_class.transform("size"))
    own = own.merge(steps, how="left", on=["peer", "peer_class", "step"])
    own["number"] = (own["number"] + own["after"]) % own["count"]
    names = ["peer", "peer_class", "number", "interval"]
    told = told.merge(steps, on=["peer", "peer_class", "step"])[[*names, "ns"]]
    found = own[names].merge(told, how="left", on=names)["ns"].to_numpy(np.float64)
    uneven = np.zeros(len(rows))
    uneven[places] = np.nan_to_num(found * np.sqrt(1.0 + 1.0 / own["peers"].to_numpy()))
    return uneven


def _models(work: Work, slow: set[int]) -> pd.DataFrame:
    """Return whose unevenness each slow rank gets: ``peer``, how many steps ``after``, of how many ``peers``.

    No two the same: ranks that were slow alike wait for one another when they are repaired.
    """
    size = Counter(work.peer_class.values())
    healthy: dict[int, list[int]] = {}
    for rank, own_class in work.peer_class.items():
        if rank not in slow:
            healthy.setdefault(own_class, []).append(rank)
    taken: dict[int, int] = {}
    models = {}
    for rank in sorted(slow):
        own_class = work.peer_class[rank]
        if own_class in healthy:
            number = taken[own_class] = taken.get(own_class, -1) + 1
            after, position = divmod(number, len(healthy[own_class]))
            models[rank] = (healthy[own_class][position], after + 1, size[own_class] - 1)
    columns = ["peer", "after", "peers"]
    return pd.DataFrame.from_dict(models, orient="index", columns=columns, dtype=np.int64)


def _deviations(work: Work, expected: Expected, peers: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Return by what healthy ranks deviate from their usual step: peer, peer_class, step, interval, ns."""
    rows = np.flatnonzero(work.cells["rank"].isin(peers).to_numpy())
    table = work.cells[["rank", "peer_class", "step", "interval"]].iloc[rows]
    table = table.rename(columns={"rank": "peer"})
    ns = work.cells["work_ns"].iloc[rows]
    if expected.unequal_ns is not None:
        ns = ns - expected.unequal_ns[rows]
    usual = ns.groupby([table[name] for name in ("peer", "peer_class", "interval")])
    usual_ns = usual.transform("mean")
    step = [table[name] for name in ("peer", "peer_class", "step")]
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = usual_ns.groupby(step).transform("sum") / ns.groupby(step).transform("sum")
    return table.assign(ns=ns * scale - usual_ns)
