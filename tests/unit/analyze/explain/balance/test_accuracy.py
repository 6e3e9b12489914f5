"""Predicted gains against pipelines measured before and after layers moved."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(scope="module")
def accuracy(project_dir):
    """Return bench/balance_accuracy.py as a module; skip where the table is not there."""
    path = project_dir / "bench" / "balance_accuracy.py"
    spec = importlib.util.spec_from_file_location("balance_accuracy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not (module.TABLES / module.FILE).is_file():
        pytest.skip(
            "needs the shared tables: the folder is absent (MESHSCOPE_TABLES names another)"
        )
    return module


def test_replayed_steps(accuracy):
    """Fails if steps replayed from mean stage times are off by more than 2 %."""
    errors = [abs(one) for one in accuracy.replay_errors().values()]
    assert max(errors) <= 0.02
    assert sum(errors) / len(errors) <= 0.01


def test_gains_of_moved_layers(accuracy):
    """Fails if gains are off by more than 1.5 points on average, or an interval does not hold."""
    found = accuracy.gains()
    errors = [abs(centre - measured) for _, centre, _, _, measured in found]
    assert sum(errors) / len(errors) <= 0.015
    for name, _, low, high, measured in found:
        assert low <= measured <= high, name
        assert (high - low) / 2 <= 0.05, name
