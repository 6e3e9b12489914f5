"""What a baseline says of its gate: false alarms, and the loss that it would find."""

from __future__ import annotations

import numpy as np
import pytest

from meshscope.analyze.gate.interval import change_between
from meshscope.analyze.gate.judge import ERROR, WEIGHT
from meshscope.analyze.gate.selftest import relabel, seen_change


@pytest.mark.parametrize("runs", [1, 2, 5, 10])
def test_the_loss_that_is_said_to_be_seen_is_seen(runs):
    """People would plan too few runs."""
    random = np.random.default_rng(5)
    spread, margin, seen = 0.002, 0.01, 0
    pattern = random.normal(size=5)
    pattern = spread * (pattern - pattern.mean()) / pattern.std(ddof=1)
    loss = np.log1p(seen_change(pattern, runs, margin))
    for _ in range(400):
        base, other = random.normal(0, spread, 5), random.normal(loss, spread, runs)
        low, _ = change_between(base, other).interval(ERROR * WEIGHT)
        seen += low > np.log1p(margin)
    assert 0.87 <= seen / 400 <= 0.995


def test_equal_runs_do_not_fail_but_two_kinds_of_run_do():
    """A gate that alarms without a cause would look sound."""
    random = np.random.default_rng(6)
    calm = relabel(random.normal(0, 0.001, 8), 0.01)
    assert [(one.base_runs, one.candidate_runs, one.splits) for one in calm] == [
        (7, 1, 8),
        (4, 4, 70),
    ]
    assert all(one.failed == 0 for one in calm)
    odd = np.array([0.0, 0.0001, -0.0001, 0.0001, 0.0, 0.05, 0.0501, 0.0499, 0.05, 0.0501])
    assert relabel(odd, 0.01)[1].failed > 0
