"""Seeded families of jobs on which the detection is judged, and how often it is right.

Seeds are ``first_seed + n``. The detection was corrected after looking at failures on the
development seeds; the held-out ones were looked at once, when it was done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from tests.slow_ranks import KINDS, Fault, Nuisance, SlowRankJob

from meshscope.analyze.explain.slow_ranks import OnlineDetector, detect
from meshscope.analyze.synthetic import Fault as SyntheticFault
from meshscope.analyze.synthetic import FaultKind, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout

DEVELOPMENT, HELD_OUT = 700_000, 31_400_000
LAYOUTS = {
    "dp8": ParallelLayout(dp=8),
    "pp4 dp4": ParallelLayout(pp=4, dp=4),
    "tp2 pp2 dp4": ParallelLayout(tp=2, pp=2, dp=4),
    "pp4 dp2": ParallelLayout(pp=4, dp=2),
    "pp2 dp2": ParallelLayout(pp=2, dp=2),
    "pp4": ParallelLayout(pp=4),
}
MORE_LAYOUTS = [
    ParallelLayout(dp=2),
    ParallelLayout(dp=4),
    ParallelLayout(tp=2, dp=4),
    ParallelLayout(pp=8),
    ParallelLayout(pp=2, dp=4),
    ParallelLayout(pp=8, dp=2),
]
"""On which healthy jobs are judged as well."""
CAPTURED = {
    "dp2": ParallelLayout(dp=2),
    "dp8": ParallelLayout(dp=8),
    "pp2 dp2": ParallelLayout(pp=2, dp=2),
}
"""Of captures with all tables: ranks that are a replica each, and stages that tell each other's work."""
PAST, LONG_PAST = 25, 100
"""Healthy steps before a fault: just more than the detection needs, and those of a running job."""
WORK_CV = 0.35


@dataclass(frozen=True, kw_only=True)
class Family:
    """Jobs of one kind: one fault, or none."""

    name: str
    layout: str
    factors: tuple[float, ...]
    """Of the slow rank, one after the other; empty: healthy."""
    start: int
    steps: int
    """Steps that are looked at after ``start``."""
    work_cv: float = 0.0
    bigger: float = 0.0
    """Factor of a second, slower rank in another replica and stage; 0: none."""
    tokens: bool = False
    """Whether the tokens of the microbatches are known."""
    first_seed: int = DEVELOPMENT

    def job(self, number: int) -> tuple[SlowRankJob, int | None]:
        """Return a job and its slow rank."""
        layout = LAYOUTS[self.layout]
        ranks = layout.world_size
        faults: tuple[Fault, ...] = ()
        slow = None
        if self.factors:
            slow = number % ranks
            factor = self.factors[number // ranks % len(self.factors)]
            faults = (Fault(rank=slow, factor=factor, start=self.start),)
        if slow is not None and self.bigger:
            at = layout.coordinates(slow)
            at |= {"dp": (at["dp"] + 1) % layout.dp, "pp": (at["pp"] + 1) % layout.pp}
            faults += (Fault(rank=layout.rank(**at), factor=self.bigger, start=self.start),)
        job = SlowRankJob(
            seed=self.first_seed + number,
            layout=layout,
            steps=self.start + self.steps,
            faults=faults,
            nuisance=Nuisance(work_cv=self.work_cv),
            tokens=self.tokens,
        )
        return job, slow


@dataclass
class Tally:
    """How often the detection was right on a family."""

    cases: int = 0
    hits: int = 0
    tops: int = 0
    wrong: int = 0
    """Jobs in which a healthy rank was blamed."""
    ambiguous: int = 0
    """Jobs in which the slow rank was named together with another one, and which is open."""
    misses: list[int] = field(default_factory=list)
    """Seeds of the missed ones."""
    blames: list[int] = field(default_factory=list)
    """Seeds of those in which a healthy rank was blamed."""


Seen = list[tuple[int, tuple[int, ...]]]
"""Suspects, the surest first, each with the ranks that fit as well."""


def offline(job: SlowRankJob) -> Seen:
    """Return the suspects of the recorded window."""
    found = detect(job.frame(), job.layout).suspects
    return [(verdict.rank, verdict.ambiguous_with) for verdict in found]


def online(job: SlowRankJob) -> Seen:
    """Return the suspects of the running job, in the order in which they were found."""
    detector = OnlineDetector(tuple(range(job.layout.world_size)), job.layout, len(KINDS))
    features = job.known_work()
    found: Seen = []
    for step, durations in enumerate(job.durations()):
        known = None if features is None else features[step]
        found += [(v.rank, v.ambiguous_with) for v in detector.update(step, durations, known)]
    return found


def captured(layout: str, number: int, *, reported: bool) -> tuple[list[int], int]:
    """Return the suspects of a capture of a job with uneven work, and its slow rank.

    That takes 2 % longer from step 25 to 44.

    Args:
        layout: Name of its mesh.
        number: Its number.
        reported: Whether the training tells the lengths of its sequences.
    """
    mesh = CAPTURED[layout]
    slow = number % mesh.world_size
    faults = (
        SyntheticFault(kind=FaultKind.SEQUENCE, cv=WORK_CV),
        SyntheticFault(kind=FaultKind.SLOW_RANK, rank=slow, factor=1.02, first_step=PAST),
    )
    job = SyntheticJob(
        layout=mesh,
        steps=PAST + 20,
        jitter_cv=0.02,
        seed=HELD_OUT + number,
        tell_sequences=reported,
        faults=faults,
    )
    return [verdict.rank for verdict in detect(generate(job)[0]).suspects], slow


def judge(family: Family, cases: int, look: Callable[[SlowRankJob], Seen]) -> Tally:
    """Return how often a detection is right on the first cases of a family."""
    tally = Tally()
    for number in range(cases):
        job, slow = family.job(number)
        found = look(job)
        true = {fault.rank for fault in job.faults}
        named = {rank for rank, _ in found}
        blamed = {rank for rank, rivals in found if not true & {rank, *rivals}}
        tally.cases += 1
        tally.wrong += bool(blamed)
        if blamed:
            tally.blames.append(job.seed)
        if slow is None:
            continue
        open_case = any(slow in (rank, *rivals) and rivals for rank, rivals in found)
        hit = slow in named or open_case
        tally.hits += hit
        tally.ambiguous += open_case
        tally.tops += bool(found) and found[0][0] in true
        if not hit:
            tally.misses.append(job.seed)
    return tally


def wilson(successes: int, cases: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate after Wilson (1927)."""
    if not cases:
        return 0.0, 1.0
    z2, rate = 1.96**2, successes / cases
    centre = (rate + z2 / (2 * cases)) / (1 + z2 / cases)
    half = 1.96 * sqrt(rate * (1 - rate) / cases + z2 / (4 * cases**2)) / (1 + z2 / cases)
    return max(0.0, centre - half), min(1.0, centre + half)


def families(first_seed: int = DEVELOPMENT) -> Iterator[Family]:
    """Yield all families of faults that have to be found."""
    for layout, mesh in LAYOUTS.items():
        for work_cv, tokens in ((0.0, False), (WORK_CV, False), (WORK_CV, True)):
            if mesh.pp == 1 and work_cv and not tokens:
                continue  # Nothing tells the work there.
            place = {
                "layout": layout,
                "work_cv": work_cv,
                "tokens": tokens,
                "first_seed": first_seed,
            }
            for past in (PAST, LONG_PAST):
                after = f"after {past}"
                yield Family(
                    name=f"5 % in 5, {after}", factors=(1.05,), start=past, steps=5, **place
                )
                yield Family(
                    name=f"2 % in 20, {after}", factors=(1.02,), start=past, steps=20, **place
                )
            if tokens or mesh.dp == 1:
                continue
            start = "from the start"
            yield Family(name=f"5 % in 5, {start}", factors=(1.05,), start=0, steps=5, **place)
            yield Family(name=f"2 % in 20, {start}", factors=(1.02,), start=0, steps=20, **place)
            if mesh.pp > 1:
                hidden = {"factors": (1.05,), "start": PAST, "steps": 10, "bigger": 1.5}
                yield Family(name="5 % in 10 behind 50 %", **hidden, **place)


def clean_job(number: int, first_seed: int = DEVELOPMENT, steps: int = 0) -> SlowRankJob:
    """Return a healthy job: any layout, length, number of microbatches and noise.

    Args:
        number: Its number.
        first_seed: Seed of the first one.
        steps: Its length; 0: one of 25 to 60.
    """
    draw = np.random.default_rng([first_seed, number])
    layouts = list(LAYOUTS.values()) + MORE_LAYOUTS
    layout = layouts[int(draw.integers(len(layouts)))]
    uneven = layout.pp > 1 and draw.random() < 0.5
    nuisance = Nuisance(
        item_cv=float(draw.uniform(0.01, 0.04)),
        item_correlation=float(draw.uniform(0.0, 0.4)),
        stalls=float(draw.choice([0.0, 0.001, 0.003])),
        step_cv=float(draw.uniform(0.0, 0.004)),
        drift=float(draw.uniform(0.0, 0.002)),
        common_drift=float(draw.uniform(0.0, 0.01)),
        spread=float(draw.uniform(0.0, 0.003)),
        work_cv=float(draw.uniform(0.3, 0.4)) if uneven else 0.0,
    )
    return SlowRankJob(
        seed=first_seed + number,
        layout=layout,
        steps=steps or int(draw.integers(25, 61)),
        microbatches=int(draw.choice([4, 8, 16])),
        nuisance=nuisance,
    )


def measured_cv(job: SlowRankJob) -> float:
    """Return the coefficient of variation within a worker and kind, averaged."""
    value = job.durations().transpose(1, 2, 0, 3).reshape(job.layout.world_size, len(KINDS), -1)
    return float(np.mean(value.std(axis=-1) / value.mean(axis=-1)))
