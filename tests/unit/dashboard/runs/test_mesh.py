"""Matrices over ranks and steps, from a ledger with known numbers."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze import Bubble, Diagnosis, Utilization
from meshscope.dashboard.runs.mesh import mesh_facets, rank_step_matrix, slowest_rank


def _diagnosis(compute: list[list[float]], places: list[tuple[int, int, int]]) -> Diagnosis:
    """Return a diagnosis of ranks x steps of forward time; waiting fills 100 ns steps."""
    rows = [
        {"rank": rank, "step": step, "step_ns": 100.0, "forward": ns, "exposed_dp_wait": 100.0 - ns}
        for rank, row in enumerate(compute)
        for step, ns in enumerate(row)
    ]
    stragglers = pd.DataFrame(places, columns=["pp", "dp", "tp"])
    stragglers.insert(0, "rank", range(len(places)))
    use = Utilization(
        mfu=None,
        hfu=None,
        flops_per_step=None,
        flops_convention="",
        peak_flops=None,
        peak_source="",
        tokens_per_s=None,
    )
    return Diagnosis(
        run={},
        step_time_ns=100.0,
        utilization=use,
        waterfall=(),
        causes=(),
        findings=(),
        limits=(),
        ledger=pd.DataFrame(rows),
        stragglers=stragglers.assign(slowdown=[1.0 + 0.1 * rank for rank in range(len(places))]),
        bubble=Bubble(measured_frac=None, ideal_frac=None, by_stage=pd.DataFrame()),
        memory=pd.DataFrame(),
        groups=pd.DataFrame(),
    )


TWO_STAGES = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]


def test_a_slow_rank_does_not_move_its_own_yardstick():
    """Fails when a rank is compared with a median that it is itself part of."""
    matrix = rank_step_matrix(
        _diagnosis([[10, 10], [10, 30], [20, 20], [20, 20]], TWO_STAGES), "slowdown"
    )
    np.testing.assert_allclose(matrix.values, [[1, 1 / 3], [1, 3], [1, 1], [1, 1]])


def test_without_peers_a_rank_is_compared_with_itself():
    """Fails when a pipeline without replicas shows nothing at all."""
    matrix = rank_step_matrix(_diagnosis([[10, 10, 40]], [(0, 0, 0)]), "slowdown")
    np.testing.assert_allclose(matrix.values, [[1, 1, 4]])
    assert not matrix.compares_ranks
    assert "own steps" in matrix.meaning
    assert "other ranks" not in matrix.meaning


@pytest.mark.parametrize("metric", ["slowdown", "own", "compute"])
def test_a_lone_rank_in_one_step_is_compared_with_nothing(metric):
    """Fails when a page says that a rank is 1.00 x of itself."""
    matrix = rank_step_matrix(_diagnosis([[10]], [(0, 0, 0)]), metric)
    assert not np.isfinite(matrix.values).any()


def test_compute_shows_the_heavy_stage():
    """Fails when stage imbalance cannot be seen because each stage is its own yardstick."""
    matrix = rank_step_matrix(_diagnosis([[10], [10], [30], [30]], TWO_STAGES), "compute")
    np.testing.assert_allclose(matrix.values[:, 0], [0.5, 0.5, 1.5, 1.5])


def test_waiting_is_a_share_of_the_step():
    """Fails when waiting is not counted over all axes against the length of the step."""
    matrix = rank_step_matrix(_diagnosis([[25.0]], [(0, 0, 0)]), "wait")
    assert matrix.values[0, 0] == pytest.approx(0.75)
    assert matrix.middle is None


def test_own_time_shows_a_late_host():
    """Fails when a rank that is late without computing looks like its peers."""
    diagnosis = _diagnosis([[10], [10]], TWO_STAGES[:2])
    diagnosis.ledger["exposed_dp_wait"] = [80.0, 10.0]
    matrix = rank_step_matrix(diagnosis, "own")
    np.testing.assert_allclose(matrix.values[:, 0], [20 / 90, 90 / 20])


def test_a_missing_step_is_a_gap():
    """Fails when a rank that lost a step shifts the others, or shows a made-up value."""
    diagnosis = _diagnosis([[10, 10], [10, 10]], TWO_STAGES[:2])
    diagnosis = replace(diagnosis, ledger=diagnosis.ledger.drop(index=3))
    matrix = rank_step_matrix(diagnosis, "wait")
    assert np.isnan(matrix.values).tolist() == [[False, False], [False, True]]


def test_the_grid_follows_the_mesh():
    """Fails when a slowdown is drawn at another place than its rank has."""
    facets = mesh_facets(_diagnosis([[1]] * 4, [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]))
    assert [facet.tp for facet in facets] == [0, 1]
    assert facets[1].rank.tolist() == [[1, 3]]
    np.testing.assert_allclose(facets[1].slowdown, [[1.1, 1.3]])


def test_an_unknown_mesh_has_no_grid():
    """Fails when ranks without a known place are drawn at one."""
    diagnosis = _diagnosis([[1], [1]], [(-1, -1, -1)] * 2)
    assert mesh_facets(diagnosis) == ()
    assert slowest_rank(diagnosis).rank == 1
