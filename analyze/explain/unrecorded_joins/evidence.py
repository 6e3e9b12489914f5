"""Joins that hold ranks back and that no record shows, found from the times alone.

A loss that is averaged by a library without hooks, a barrier of a logger: ranks wait there, and
the waiting looks like work of their own. Such a join leaves a trace. Between two operations of the
program, a rank is ready (it has stopped computing) and then departs (the next operation begins):

* nobody of a group departs before its last member is ready;
* how long a member stands between ready and departure follows from how early it came, and not
  from itself: with gap = departure - ready and lead = ready of the last - ready, the rest
  (gap - lead) varies less than the gap does.

Without a join the rest varies more than the gap, by the variance of the lead, so the test is one of
two paired variances: gap and rest have equal ones exactly where their sum does not follow their
difference (E. J. G. Pitman, "A note on normal correlation", 1939; W. A. Morgan, the same year). It is
made on the changes from step to step, without those of single pauses, and on the means of the
members at a place. In short captures it counts too that members depart together, which by chance is as
improbable as their distance is small beside the lead; the two chances are combined (R. A. Fisher,
"Statistical Methods for Research Workers", 1932). Candidates are the groups of the mesh.
"""

from __future__ import annotations

from math import erfc, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...tables.arrays import BoolArray, FloatArray, IntArray, combined
from .places import Places

LEAST_STEPS = 8
"""Waits of members in all steps, from which on gaps can follow anything."""
LEAST_CHANCE = 1e-12
"""No chance is taken for smaller."""
LEAST_OWN = 4
"""Those of one member."""
MAX_CHANCE = 1e-5
"""A gap follows the lead where that is this improbable by chance, over all that was tested."""
MAX_LEFT_EARLY = 0.05
"""Share of the steps in which somebody may depart before the last is ready, rounded up to whole steps."""
MAX_REST = 0.5
"""Scale of the changes of the rest over that of the gap, up to which a join explains the gap."""
MAX_REST_OF_LEAD = 0.1
"""Or over the mean lead: members depart together, whatever the join itself takes."""
MOST_SURE = 1.0 - 1e-9
"""No correlation is taken for larger: times have a resolution."""
INDEPENDENT = 2 / 3
"""Of changes between neighbours, two in three are as good as independent."""
OUTLIER = 5.0
"""Changes of the rest beyond that many times their median are of something else, such as a pause."""
LEAST_USUAL = 0.5
"""Share of the steps that must be without."""

AS_GOOD = 1.25
"""Families that leave up to that many times the least rest explain a gap as well; and a group stands
where no family explains that many times as many of its waits."""


class Tested(NamedTuple):
    """Places held against the groups of one family, one row a place."""

    group: IntArray
    """Equal for the members of one group at one place."""
    join: IntArray
    """The same, by step."""
    is_whole: BoolArray
    """All members of the group are there in this step."""
    rest_ns: FloatArray
    """How far what the group does not explain of the gap varies, of the rank at this place."""
    is_explained: BoolArray
    """The gaps of the rank at this place follow the last of the group."""


def held_against(
    places: Places, labels: dict[int, int], resolution_ns: float, least_ns: float
) -> Tested:
    """Hold places against the groups of one family."""
    label = np.array([labels[rank] for rank in places.rank.tolist()], dtype=np.int64)
    group = combined(places.key, label)
    join = combined(group, places.step)
    members = pd.Series(places.rank).groupby(group).transform("nunique").to_numpy()
    there = pd.Series(places.rank).groupby(join).transform("size").to_numpy()
    is_whole = (there == members) & (members > 1)
    last = pd.Series(places.ready_ns).groupby(join).transform("max").to_numpy()
    lead, gap = last - places.ready_ns, places.gap_ns
    early = pd.Series(gap - lead).groupby(join).transform("min").to_numpy() < -resolution_ns
    of_group = pd.DataFrame({"early": early, "steps": 1 / members})[is_whole].groupby(
        group[is_whole]
    )
    found = of_group.agg(early=("early", "mean"), steps=("steps", "sum")).reindex(group)
    steps = found["steps"].round().to_numpy()
    # At least one step of few: operations that lie close change places by the scatter of their stamps.
    holds = (found["early"].to_numpy() * steps).round() <= np.ceil(MAX_LEFT_EARLY * steps)
    own = combined(places.rank, places.key)
    waits = pd.Series((lead > 3 * resolution_ns) & is_whole).groupby(group).transform("sum")
    holds &= waits.to_numpy() >= LEAST_STEPS
    of_last = pd.Series(np.where(lead > 0, np.inf, gap)).groupby(join).transform("min").to_numpy()
    table = pd.DataFrame(
        {
            "own": own,
            "group": group,
            "place": places.key,
            "gap": gap,
            "lead": lead,
            "apart": np.abs(gap - lead - of_last),
        }
    )[is_whole & holds]
    of_own = _followed(table, resolution_ns, least_ns).reindex(own)
    follows = of_own["follows"].fillna(0.0).to_numpy() > 0
    return Tested(group, join, is_whole, of_own["rest_ns"].to_numpy(np.float64), follows)


def _followed(table: pd.DataFrame, resolution_ns: float, least_ns: float) -> pd.DataFrame:
    """Return for each rank and place whether its gaps follow its leads, and how far the rest varies.

    Args:
        table: own (the rank and place), group, place, gap, lead, apart (from the departure of the
            last); a row a step, in their order.
        resolution_ns: How far apart stamps of one instant may lie.
        least_ns: Mean wait from which on it matters.
    """
    by_own = table.assign(waits=table["lead"] > 3 * resolution_ns).groupby("own")
    found = by_own.agg(
        **{name: (name, "first") for name in ("group", "place")},
        waits=("waits", "sum"),
        gap=("gap", "mean"),
        lead=("lead", "mean"),
        apart=("apart", "median"),
    )
    chance, rest_ns = _from_step_to_step(table, found, resolution_ns)
    may = (found["waits"] >= LEAST_OWN) & (found["lead"] >= least_ns)
    follows = chance * len(found) < MAX_CHANCE
    follows |= _departing_together(found, chance, resolution_ns) * len(found) < MAX_CHANCE
    follows = may & (follows | _across_members(found))
    return pd.DataFrame({"follows": follows.astype(np.float64), "rest_ns": rest_ns})


def _from_step_to_step(
    table: pd.DataFrame, found: pd.DataFrame, resolution_ns: float
) -> tuple[pd.Series, pd.Series]:
    """Return how probable gaps would change so by chance, and how far the rest changes.

    By changes, because what a job does otherwise for some time is not held against a join. The chance
    is 1 where the lead explains too little of the gap.
    """
    change = table.groupby("own")[["gap", "lead"]].diff()
    change = change.assign(own=table["own"], rest=change["gap"] - change["lead"]).dropna()
    scale = change[["gap", "rest"]].abs().groupby(change["own"]).median().reindex(found.index)
    limit = OUTLIER * scale["rest"].reindex(change["own"]).to_numpy()
    usual = change[change["rest"].abs() <= np.maximum(limit, resolution_ns)]
    kept = usual.groupby("own").size().reindex(found.index).fillna(0)
    chance = _chance(usual["own"], usual["gap"] + usual["rest"], usual["lead"], INDEPENDENT)
    is_kept = kept >= LEAST_USUAL * (table.groupby("own").size() - 1)
    explained = np.maximum(MAX_REST * scale["gap"], MAX_REST_OF_LEAD * found["lead"])
    fits = is_kept & (scale["rest"] <= explained)
    return chance.reindex(found.index).where(fits, 1.0).fillna(1.0), scale["rest"]


def _departing_together(found: pd.DataFrame, chance: pd.Series, resolution_ns: float) -> pd.Series:
    """Return how probable it is by chance that gaps change so, and that a member departs with the last.

    A departure that has nothing to do with that of the last one is anywhere within a lead of it. The
    product of two chances is as small as ``q`` with the probability ``q (1 - log q)`` (Fisher, 1932).
    """
    apart = (found["apart"] + resolution_ns) / found["lead"].where(found["lead"] > 0)
    both = (chance * apart.clip(upper=1.0)).fillna(1.0).clip(lower=LEAST_CHANCE)
    combined_chance: pd.Series[float] = both * (1.0 - np.log(both))
    return combined_chance


def _across_members(found: pd.DataFrame) -> pd.Series:
    """Tell whose mean gaps are the larger the earlier they come, among the members at their place.

    Groups of a family run one program, so that the members of all of them count.
    """
    rest = found["gap"] - found["lead"]
    chance = _chance(found["place"], found["gap"] + rest, found["lead"])
    is_shared = found["place"].map(chance) * len(chance) < MAX_CHANCE
    own = (rest - rest.groupby(found["group"]).transform("min")).abs()
    return is_shared & (own <= MAX_REST_OF_LEAD * found["lead"])


def _chance(
    own: pd.Series, first: pd.Series, second: pd.Series, independent: float = 1.0
) -> pd.Series:
    """Return how probable a correlation of two columns as large is without any, within groups.

    Fisher's transformation: its variance is 1 / (n - 3).

    Args:
        own: The group of each row.
        first: One value a row.
        second: The other.
        independent: Share of the rows of a group that count.
    """
    values = pd.DataFrame({"first": first, "second": second})
    centred = values - values.groupby(own).transform("mean")
    squares = (centred**2).groupby(own).sum()
    both = (centred["first"] * centred["second"]).groupby(own).sum().to_numpy(np.float64)
    scale = np.sqrt(squares.prod(axis=1).to_numpy(np.float64))
    correlation = np.divide(both, scale, out=np.zeros_like(both), where=scale > 0)
    count = values.groupby(own).size().to_numpy() * independent
    deviation = np.arctanh(np.clip(correlation, -MOST_SURE, MOST_SURE))
    deviation *= np.sqrt(np.maximum(count - 3, 0))
    return pd.Series([erfc(value / sqrt(2)) / 2 for value in deviation], index=squares.index)


def widest_of_the_best(tested: list[Tested], resolution_ns: float) -> IntArray:
    """Return for each place the family that explains it, -1 for none; of those as good, the largest groups.

    Who departs together with more ranks, and never before the last of them, waits for all of them.
    How good a family is, all members of a group tell together: one alone may fit another by chance,
    and no rank waits twice for the same. Nor does a group stand where its members follow smaller ones.
    """
    explained = _standing(tested)
    rest = np.array(
        [np.where(row, own.rest_ns, np.inf) for own, row in zip(tested, explained, strict=True)]
    )
    best = rest.min(axis=0)
    of_group, best_of_group = (
        np.array([_mean_of_group(own.group, row) for own, row in zip(tested, rows, strict=True)])
        for rows in (rest, np.where(np.isfinite(rest), best, np.inf))
    )
    good = np.isfinite(of_group) & (of_group <= AS_GOOD * best_of_group + resolution_ns)
    widest = len(tested) - 1 - np.argmax(good[::-1], axis=0)
    of_any = np.where(np.any(good, axis=0), widest, np.argmin(of_group, axis=0))
    return np.asarray(np.where(np.isfinite(of_group.min(axis=0)), of_any, -1))


def _standing(tested: list[Tested]) -> BoolArray:
    """Return which places each family explains, without groups of whose waits another explains more.

    The largest groups are looked at first; what does not stand is held against no smaller one.

    Returns:
        One row a family, one column a place.
    """
    explained = np.array([own.is_explained for own in tested])
    for number in reversed(range(len(tested))):
        place = np.unique(tested[number].group, return_inverse=True)[1]
        waits = np.array([np.bincount(place, row) for row in explained])
        explained[number] &= (AS_GOOD * waits[number] >= waits.max(axis=0))[place]
    return explained


def _mean_of_group(group: IntArray, value: FloatArray) -> FloatArray:
    """Return the mean of the finite values of its group at each place that has one, else infinity."""
    finite = np.isfinite(value)
    number = np.unique(group, return_inverse=True)[1]
    count = np.bincount(number[finite], minlength=number.max(initial=-1) + 1)
    total = np.bincount(number[finite], value[finite], minlength=len(count))
    mean = np.divide(total, count, out=np.full(len(count), np.inf), where=count > 0)
    return np.where(finite, mean[number], np.inf)
