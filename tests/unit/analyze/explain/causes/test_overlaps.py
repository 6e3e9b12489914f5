"""A slow rank on a heavy stage: each repair returns what the paired jobs say."""

from itertools import combinations

import numpy as np
import pytest
from tests.synthetic import MS, Job, capture

from meshscope.analyze.explain.causes import kept_overlaps
from meshscope.analyze.explain.causes.overlaps import Overlap
from meshscope.analyze.explain.replay.effect_folding import edge_effect
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(pp=2, dp=4)
SLOW, HEAVY = 5, 1
"""The slow rank, which lies on the heavy stage."""
EVEN = {"forward": 10 * MS, "backward": 20 * MS}
EXTRA = 1.6


def work_of(*faults, by_factor):
    """Return the work of a job with some of the faults; a stage is repaired by moving its work."""

    def work(kind, rank, step, microbatch):
        stage = LAYOUT.coordinates(rank)["pp"]
        share = (EXTRA if stage == HEAVY else 1.0) if "stage" in faults else (1 + EXTRA) / 2
        own = EVEN[kind] * share
        if rank == SLOW and "rank" in faults:
            own = own * 1.5 if by_factor else own + (15 * MS if kind == "forward" else 0)
        return int(own)

    return work


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("by_factor", "optimizer_ms"),
    [(True, 2), (False, 2), (True, 60)],
    ids=["by a factor", "by a time", "but not in the optimizer"],
)
def test_each_repair_returns_what_the_paired_job_says(by_factor, optimizer_ms):
    """The stage would be said to return too little, and the rank be blamed for its work."""
    job = Job(layout=LAYOUT, steps=4, optimizer_ns=optimizer_ms * MS)
    step_ns = {
        faults: diagnose(capture(job, work_of(*faults, by_factor=by_factor))).step_time_ns
        for count in range(3)
        for faults in combinations(("rank", "stage"), count)
    }
    both = step_ns["rank", "stage"]
    result = diagnose(capture(job, work_of("rank", "stage", by_factor=by_factor)))
    causes = {cause.kind: cause for cause in result.causes}
    slow, heavy = causes["straggler_rank"], causes["stage_imbalance"]
    assert (slow.where, heavy.where) == ({"rank": SLOW}, {"stage": HEAVY})
    close = {"abs": 0.005}
    assert slow.removal_gain_frac == pytest.approx(1 - step_ns["stage",] / both, **close)
    assert heavy.removal_gain_frac == pytest.approx(1 - step_ns["rank",] / both, **close)
    shares = slow.share_frac + heavy.share_frac
    assert shares == pytest.approx(1 - step_ns[()] / both, **close)


def test_an_overlap_is_given_back_once_where_both_are_repaired():
    """What two causes have together would be taken from the step twice."""
    keep = np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    overlap = Overlap((0, 1), edge_effect(-np.ones(3)))
    assert kept_overlaps(keep, [overlap]).tolist() == [[0.0, 1.0, 1.0, 1.0]]
    assert kept_overlaps(keep, []).shape == (0, 4)
