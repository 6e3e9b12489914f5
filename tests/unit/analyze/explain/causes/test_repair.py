"""A repaired rank takes as long as its peers, and is as uneven."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.explain.causes.effects import Expected, Work, peer_centre
from meshscope.analyze.explain.causes.repair import repaired_work

STEPS, PIECES = 30, 40
CV = 0.1


def work_of(work_ns):
    """Return the work [rank, step, piece] of ranks that are all each other's peers."""
    ranks, steps, pieces = work_ns.shape
    index = pd.MultiIndex.from_product(
        [range(ranks), range(steps), range(pieces)], names=["rank", "step", "interval"]
    )
    cells = index.to_frame(index=False).assign(
        peer_class=0, alike=1, work_ns=work_ns.ravel(), compute_ns=work_ns.ravel(), clock_ns=0.0
    )
    return Work(
        cell=np.arange(len(cells), dtype=np.int32),
        cells=cells,
        busy_edge=np.flatnonzero(work_ns),
        busy_ns=work_ns[work_ns != 0],
        edge_host_ns={},
        peer_class=dict.fromkeys(range(ranks), 0),
        stage=dict.fromkeys(range(ranks), 0),
        deviating=0,
    )


def repaired(work_ns, slow):
    """Return the work [rank, step, piece] with some ranks repaired, and the centre of their peers."""
    work = work_of(work_ns)
    centre = peer_centre(work)
    found = repaired_work(work, Expected(centre, None), slow)
    return found.reshape(work_ns.shape), centre.reshape(work_ns.shape)


def jittery(ranks, seed=5):
    """Return healthy work, piece by piece, and the same with rank 1 slow by a half."""
    random = np.random.default_rng(seed)
    healthy = 1e6 * random.lognormal(0.0, CV, (ranks, STEPS, PIECES))
    slowed = healthy.copy()
    slowed[1] *= 1.5
    return healthy, slowed


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_that_wait_after_each_piece_lose_what_a_healthy_job_loses(ranks):
    """A repair would promise more than it returns: as if the repaired rank were never the last."""
    healthy, slowed = jittery(ranks)
    found, centre = repaired(slowed, [1])
    true = healthy.max(axis=0).sum()
    smooth = np.concatenate([slowed[:1], centre[1:2], slowed[2:]]).max(axis=0).sum()
    assert found.max(axis=0).sum() == pytest.approx(true, rel=0.01)
    assert abs(found.max(axis=0).sum() - true) < abs(smooth - true) / 3


def test_a_repaired_rank_takes_as_long_as_its_peers():
    """What it lost in all would depend on the peer that was taken."""
    _, slowed = jittery(4)
    found, centre = repaired(slowed, [1])
    assert found[1].sum() == pytest.approx(centre[1].sum(), rel=1e-9)
    np.testing.assert_array_equal(found[[0, 2, 3]], slowed[[0, 2, 3]])


def test_a_repaired_rank_is_late_as_often_as_its_peers():
    """A repair would return what chance delays cost, which the rank keeps when it is repaired."""
    random = np.random.default_rng(3)
    late = 0.5 * (random.random((4, 400, 1)) < 0.1)
    healthy = 1e6 * (1.0 + late + 0.001 * random.standard_normal((4, 400, 1)))
    slowed = healthy.copy()
    slowed[1] *= 1.2
    found, _ = repaired(slowed, [1])
    assert (found[1] > 1.25e6).mean() == pytest.approx(0.1, abs=0.03)
    assert found.max(axis=0).mean() == pytest.approx(healthy.max(axis=0).mean(), rel=0.02)


def test_ranks_that_were_slow_alike_are_not_uneven_alike():
    """Two repaired members of a group would never wait for each other."""
    _, slowed = jittery(4)
    slowed[2] *= 1.5
    for ranks in (4, 3):  # with two healthy peers, and with one
        found, centre = repaired(slowed[:ranks], [1, 2])
        uneven = (found - centre)[[1, 2]].reshape(2, -1)
        assert (uneven.std(axis=-1) > 0.5 * CV * 1e6).all()
        assert abs(np.corrcoef(uneven)[0, 1]) < 0.2


def test_without_a_healthy_peer_the_centre_stays():
    """Where all peers are slow there is nobody to be as uneven as."""
    _, slowed = jittery(2)
    found, centre = repaired(slowed, [0, 1])
    np.testing.assert_array_equal(found, centre)


def test_a_rank_without_any_peer_keeps_its_work():
    """Work of which nothing is known would be lost, or become unknown."""
    _, slowed = jittery(2)
    found, _ = repaired(slowed[1:], [0])
    np.testing.assert_array_equal(found, slowed[1:])


def test_ranks_with_and_without_a_healthy_peer_are_repaired_together():
    """A slow rank whose peers are all slow would take the unevenness of another one's."""
    _, slowed = jittery(4)
    work = work_of(slowed)
    work.cells["peer_class"] = work.cells["rank"] // 2
    work.peer_class.update({2: 1, 3: 1})
    centre = peer_centre(work)
    found = repaired_work(work, Expected(centre, None), [1, 2, 3]).reshape(slowed.shape)
    alone = centre.reshape(slowed.shape)
    np.testing.assert_array_equal(found[[2, 3]], alone[[2, 3]])
    assert (found[1] != alone[1]).mean() > 0.99
    np.testing.assert_allclose(found[1].sum(axis=-1), alone[1].sum(axis=-1), rtol=1e-9)


def test_a_slow_rank_among_many_peers_over_many_steps_is_repaired():
    """Fails when more ranks and steps than small jobs have end the account in an error."""
    ranks, steps = 128, 40
    work_ns = np.random.default_rng(3).normal(1e6, 1e4, (ranks, steps, 1))
    work_ns[5] *= 1.2
    found, centre = repaired(work_ns, [5])
    assert found[5].mean() == pytest.approx(centre[5].mean(), rel=0.01)
