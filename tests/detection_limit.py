"""How often a slow rank of a synthetic job could be found at best.

The test that is computed knows the rank, the first bad step, the slopes of the stages and the
whole noise; it blames a rank of one healthy window in 1,000. Per rank and step the noise
is that of the scatter of items, of whole steps and of slow drift (``tests.slow_ranks``);
a score holds that of the ranks that tell the work, by how much they can tell. The best linear
test of a raised mean against an unknown constant has the deviate ``sqrt(s' P s)``, ``P = C^-1 -
C^-1 1 1' C^-1 / (1' C^-1 1)`` (generalised least squares).

Nobody tells a real test who is slow and since when. Looking for both takes the border of the detection (all ranks,
all stretches, at the same rate of false alarms): what a test finds with that border that knows the slopes and
the noise is the second figure. What the detection finds less, it loses because it estimates them.
"""

from statistics import NormalDist

import numpy as np
from msgspec.structs import replace
from tests.detection_cases import LAYOUTS, Family
from tests.slow_ranks import KINDS, Nuisance, SlowRankJob

from meshscope.analyze.explain.slow_ranks.judge import running_budgets, window_budgets
from meshscope.analyze.explain.slow_ranks.settings import DetectionSettings
from meshscope.analyze.explain.slow_ranks.stretches import borders

FALSE_ALARMS = 1e-3
DEGREES = 1e4
"""Of the noise that is known: many."""
STUDENT_EFFICIENCY = 0.8
"""Variance of the best estimate of the mean of Student's t with 5 degrees, over that of the plain
mean: ``1 / (5 / 3 * 6 / 8)``."""


def best_rate(family: Family) -> float:
    """Return the share of the slow ranks of a family that the clairvoyant test finds, 0 to 1."""
    ranks = LAYOUTS[family.layout].world_size
    return _rate(family, NormalDist().inv_cdf(1.0 - FALSE_ALARMS / ranks))


def searching_rate(family: Family, *, running: bool) -> float:
    """Return the share that is found without knowing the rank and the first bad step, 0 to 1.

    Args:
        family: Jobs of one kind, with a past.
        running: Whether the job is judged after each step, or a recorded window once.
    """
    ranks, steps = LAYOUTS[family.layout].world_size, family.start + family.steps
    budgets = (running_budgets if running else window_budgets)(ranks, steps, DetectionSettings())
    # Of the two tests, the one against the past: together they may cost twice that without a doubt.
    budget = replace(budgets.past, rate=2.0 * budgets.past.rate)
    border = borders(np.ones((family.steps, 1)), budget, DEGREES)[-1, 0]
    return _rate(family, float(border))


def _rate(family: Family, border: float) -> float:
    """Return the share of the slow ranks of a family whose statistic exceeds a border."""
    job, _ = family.job(0)
    slow = family.factors[0] - 1.0
    deviate = slow * step_deviates(job.nuisance, job.microbatches, family.start, family.steps)
    grown = _amplification(job, tells=bool(family.work_cv) and not family.tokens)
    return float(np.mean([NormalDist().cdf(deviate / g - border) for g in grown]))


def step_deviates(noise: Nuisance, microbatches: int, past: int, steps: int) -> float:
    """Return the deviates by which a mean that is raised by 1 after a past stands out."""
    when = np.arange(past + steps)
    lag = np.abs(when[:, None] - when[None])
    alike = (1 + noise.item_correlation) / (1 - noise.item_correlation)
    items = noise.item_cv**2 * STUDENT_EFFICIENCY * alike / (len(KINDS) * microbatches)
    periods = np.linspace(60, 200, 141)
    drift = np.cos(2 * np.pi * lag[..., None] / periods).mean(axis=-1)
    covariance = items * (lag == 0) + noise.step_cv**2 * 0.5**lag + noise.drift**2 / 2 * drift
    raised, ones = (when >= past).astype(np.float64), np.ones(len(when))
    information, level = np.linalg.solve(covariance, raised), np.linalg.solve(covariance, ones)
    return float(np.sqrt(raised @ information - (raised @ level) ** 2 / (ones @ level)))


def _amplification(job: SlowRankJob, *, tells: bool) -> list[float]:
    """Return, by rank, what the ranks that tell its work add to its noise.

    With a duration ``work * v`` (``v`` larger than 1 in a stage with a head) a rank tells the
    work with a relative variance of ``v^2``.
    """
    layout = job.layout
    if not tells:
        return [1.0] * layout.world_size
    work = (
        job.work(np.random.default_rng(job.seed)).transpose(1, 0, 2).reshape(layout.world_size, -1)
    )
    time = job.stage_times(job.work(np.random.default_rng(job.seed)))[:, :, 0].transpose(1, 0, 2)
    size = (time.reshape(layout.world_size, -1) / (10e6 * work)) ** 2
    grown = []
    for rank in range(layout.world_size):
        at = layout.coordinates(rank)
        same = [
            other
            for other in range(layout.world_size)
            if other != rank
            and all(layout.coordinates(other)[axis] == at[axis] for axis in ("dp", "cp"))
        ]
        if not same:
            grown.append(float("inf"))
            continue
        reported = sum(1.0 / size[other] for other in same)
        grown.append(float(1.0 / np.sqrt(np.mean(1.0 / (1.0 + 1.0 / (size[rank] * reported))))))
    return grown
