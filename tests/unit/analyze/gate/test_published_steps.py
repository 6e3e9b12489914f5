"""The gate on repeated runs of real jobs: false alarms, and changes that are found."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from meshscope.analyze.gate.compare import compare
from meshscope.analyze.gate.loaded import LoadedRun, baseline_of
from meshscope.analyze.gate.paired import planned_looks
from meshscope.analyze.gate.results import Verdict

FOLDER = Path(os.environ.get("MESHSCOPE_TABLES", Path(__file__).parents[5] / "shared" / "tables"))
MARGIN = 0.01


@pytest.fixture(scope="module")
def jobs():
    """Return the jobs with ten runs: step times in ns."""
    path = FOLDER / "mlperf_llama31_steps.json.gz"
    if not path.exists():
        pytest.skip(f"published step times are not at {path}")
    found = defaultdict(list)
    for row in json.loads(gzip.decompress(path.read_bytes())):
        key = row["bench"], row["submitter"], row["system"]
        found[key].append(np.array(row["step_s"]) * 1e9)
    return [runs for runs in found.values() if len(runs) == 10]


def verdicts(jobs, candidates, factor, splits):
    """Return how often each verdict comes of 5 random runs against others that are slower by a factor."""
    random = np.random.default_rng(20)
    counts = Counter()
    for number in range(splits):
        times = jobs[number % len(jobs)]
        order = random.permutation(10)
        runs = [LoadedRun(name=str(at), step_ns=times[at]) for at in order[:5]]
        others = [
            LoadedRun(name=str(at), step_ns=times[at] * factor) for at in order[5 : 5 + candidates]
        ]
        counts[compare(baseline_of(runs), others, margin=MARGIN).verdict] += 1
    return counts


@pytest.mark.sampled(keep=("1",))
@pytest.mark.parametrize("candidates", [5, 1])
def test_equal_jobs_do_not_fail(jobs, candidates):
    """People would switch a gate off that alarms without a cause."""
    splits = 1_008
    assert verdicts(jobs, candidates, 1.0, splits)[Verdict.FAIL] <= 0.005 * splits


@pytest.mark.sampled(keep=("2-0.9",))
@pytest.mark.parametrize(("candidates", "least"), [(5, 0.95), (2, 0.9), (1, 0.85)])
def test_two_per_cent_are_found(jobs, candidates, least):
    """A loss that costs days of a long job would be merged."""
    splits = 504
    assert verdicts(jobs, candidates, 1.02, splits)[Verdict.FAIL] >= least * splits


def test_a_gain_asks_for_a_new_baseline(jobs):
    """The gate would become blunt by the size of every gain."""
    assert verdicts(jobs, 5, 0.97, 56)[Verdict.IMPROVED] == 56


def paired_verdicts(jobs, factor, trials):
    """Return the verdicts of five random pairs at up to three looks, and how many pairs were run."""
    random = np.random.default_rng(21)
    counts, pairs = Counter(), 0
    for number in range(trials):
        times = jobs[number % len(jobs)]
        order = random.permutation(10)
        sides = (order[:5], 1.0), (order[5:], factor)
        base, other = (
            [LoadedRun(name=str(at), step_ns=times[at] * own) for at in side] for side, own in sides
        )
        for look in planned_looks(5):
            made = baseline_of(base[: look.pairs])
            result = compare(made, other[: look.pairs], margin=MARGIN, look=look)
            if look.is_last or result.checks[0].verdict is not Verdict.INCONCLUSIVE:
                counts[result.verdict] += 1
                pairs += look.pairs
                break
    return counts, pairs / trials


@pytest.mark.sampled(keep=())
def test_pairs_with_early_looks_neither_alarm_nor_miss(jobs):
    """Stopping early would cost false alarms, or the loss that it is there to find."""
    equal, _ = paired_verdicts(jobs, 1.0, 1_008)
    assert equal[Verdict.FAIL] <= 0.005 * 1_008
    slower, pairs = paired_verdicts(jobs, 1.02, 504)
    assert slower[Verdict.FAIL] >= 0.9 * 504
    assert pairs < 4.5
