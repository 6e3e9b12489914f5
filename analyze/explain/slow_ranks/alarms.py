"""Ranks of a running job that were found slow, and what they did since."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import msgspec
import numpy as np

from ...tables.arrays import BoolArray, FloatArray
from .conclude import MIN_CONFIDENCE, Measured, Stretch, slow_verdict
from .cube import Cube
from .judge import Judge, Look
from .stretches import LONGEST, SHORTEST, Stretches
from .uncertainty import Doubt
from .verdict import Evidence, Persistence, RankVerdict

RIVAL_SHARE = 0.5
"""A rank at this share of the first one's strength may be the slow one as well."""
UNSURE_STEPS = 3
"""By which a slow-down may have begun earlier than it seems."""


class Alarm(msgspec.Struct):
    """A rank that was found slow."""

    verdict: RankVerdict
    by_past: bool
    total: float
    """Sum of its excess since the first bad step."""
    count: float
    age: int = 0
    """Steps since it was found."""

    @property
    def slowdown(self) -> float:
        """Return its mean excess while slow."""
        return self.total / max(self.count, 1.0)

    @property
    def is_slow(self) -> bool:
        """Return whether it has not recovered."""
        return self.verdict.persistence is Persistence.PERSISTENT


class Alarms:
    """All alarms of a job by position of the rank; a rank has its latest one."""

    def __init__(self, cube: Cube) -> None:
        """Begin without alarms."""
        self._cube = cube
        self._of: dict[int, Alarm] = {}
        self._steps: deque[int] = deque(maxlen=LONGEST)

    def get(self, position: int) -> Alarm | None:
        """Return the latest alarm of a rank."""
        return self._of.get(position)

    @property
    def slow(self) -> BoolArray:
        """Return the ranks that were found slow and have not recovered."""
        ranks = np.zeros(len(self._cube.ranks), dtype=bool)
        ranks[[position for position, alarm in self._of.items() if alarm.is_slow]] = True
        return ranks

    @property
    def blamed(self) -> BoolArray:
        """Return the ranks that were ever found slow."""
        ranks = np.zeros(len(self._cube.ranks), dtype=bool)
        ranks[list(self._of)] = True
        return ranks

    def update(
        self, step: int, look: Look, judge: Judge, doubt: Doubt, by_work: BoolArray
    ) -> tuple[RankVerdict, ...]:
        """Take in one step: return the verdict on the rank that was newly found slow, if any.

        Args:
            step: Its number.
            look: What the tests say.
            judge: Whose scores they were.
            doubt: How wrong scores may be.
            by_work: Ranks whose work other stages show.
        """
        self._steps.append(step)
        found = self._raise_first(look, judge, doubt, by_work)
        self._follow(judge, doubt)
        return () if found is None else (found,)

    def _raise_first(
        self, look: Look, judge: Judge, doubt: Doubt, by_work: BoolArray
    ) -> RankVerdict | None:
        """Return the verdict on the rank that stands out most, None if none does.

        Ranks that changed come first: a slow one makes those that are compared with it stand out
        against their peers, but not against their own past.
        """
        slow = self.slow
        strength = np.where(slow, 0.0, look.strength)
        changed = np.where(slow, 0.0, look.past.strength)
        if strength.max(initial=0.0) < 1.0:
            return None
        by_past = bool(changed.max() >= 1.0)
        position = int((changed if by_past else strength).argmax())
        rivals = () if by_past else self._rivals(position, strength)
        evidence = Evidence.WORK if by_work[position] else Evidence.PEERS
        kept = judge.own if by_past else judge.peers
        length, measured, count = _latest(position, kept, doubt, by_past=by_past)
        if measured.confidence(len(slow), 0) < MIN_CONFIDENCE:
            return None
        step = self._steps[-1]
        run = (self._steps[-length], step)
        stretch = Stretch(runs=(run,), found_at_step=step, lasting=True)
        verdict = slow_verdict(
            self._cube.ranks[position],
            measured,
            stretch,
            Evidence.HISTORY if by_past else evidence,
            ranks=len(slow),
            rivals=tuple(self._cube.ranks[rival] for rival in rivals),
        )
        self._of[position] = Alarm(verdict, by_past, measured.slowdown * count, count)
        compared = self._cube.lane == self._cube.lane[position]
        compared[position] = False
        judge.own.forget(compared, last=length + UNSURE_STEPS)
        judge.peers.forget(compared)
        return verdict

    def _follow(self, judge: Judge, doubt: Doubt) -> None:
        """Take in what slow ranks did in this step, and notice those that recovered."""
        step = self._steps[-1]
        for by_past in (True, False):
            mine = {p: a for p, a in self._of.items() if a.is_slow and a.by_past is by_past}
            if not mine:
                continue
            slowdown = np.full(len(self._cube.ranks), np.nan)
            since = np.zeros(len(self._cube.ranks), dtype=np.int64)
            slowdown[list(mine)] = [alarm.slowdown for alarm in mine.values()]
            since[list(mine)] = [alarm.age for alarm in mine.values()]
            relief, excess = judge.relief(slowdown, since, doubt, by_past=by_past)
            for position, alarm in mine.items():
                alarm.age += 1
                if relief.strength[position] >= 1.0:
                    self._recover(position, int(relief.length[position]), judge)
                elif excess[position] > alarm.slowdown / 2:
                    alarm.total += float(excess[position])
                    alarm.count += 1
                    alarm.verdict = replace(_until(alarm.verdict, step), slowdown=alarm.slowdown)

    def _recover(self, position: int, since: int, judge: Judge) -> None:
        alarm = self._of[position]
        last = self._steps[max(-len(self._steps), -since - 1)]
        alarm.verdict = replace(_until(alarm.verdict, last), persistence=Persistence.TRANSIENT)
        itself = np.arange(len(self._cube.ranks)) == position
        judge.own.forget(itself, keep=since)
        judge.peers.forget(itself, keep=since)

    def _rivals(self, position: int, strength: FloatArray) -> tuple[int, ...]:
        """Return the ranks of other stages and replicas that stand out about as much."""
        cube = self._cube
        diagonal = (
            (cube.lane == cube.lane[position])
            & (cube.replica != cube.replica[position])
            & (cube.place != cube.place[position])
        )
        alike = diagonal & (strength >= RIVAL_SHARE * strength[position])
        return tuple(int(rank) for rank in np.flatnonzero(alike))


def _until(verdict: RankVerdict, step: int) -> RankVerdict:
    """Return the verdict with another last bad step."""
    first = verdict.slow_steps[0][0]
    return replace(verdict, last_bad_step=step, slow_steps=((first, step),))


def _latest(
    position: int, kept: Stretches, doubt: Doubt, *, by_past: bool
) -> tuple[int, Measured, float]:
    """Return the most likely length of the stretch of a rank that ends now, and its excess.

    The third value is in how many of its steps there was a score.
    """
    means = kept.means(np.full(len(doubt.step), np.inf))
    excess = (means.recent - means.before if by_past else means.recent)[:, position]
    count = means.count[:, position]
    before = means.before_count[:, position]
    lasting = doubt.lasting[position] ** 2
    if by_past:
        lasting = doubt.variance[position] / np.maximum(before, 1.0) + doubt.wander[position] ** 2
    error = np.sqrt(doubt.variance[position] / np.maximum(count, 1.0) + lasting)
    usable = np.where(count >= SHORTEST, excess / error, -np.inf)[SHORTEST - 1 : LONGEST]
    length = int(usable.argmax()) + SHORTEST
    measured = Measured(
        slowdown=float(excess[length - 1]),
        error=float(error[length - 1]),
        degrees=doubt.noise.degrees,
    )
    return length, measured, float(count[length - 1])
