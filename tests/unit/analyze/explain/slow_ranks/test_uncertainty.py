"""How unlike healthy ranks may be."""

import numpy as np
import pytest

from meshscope.analyze.explain.slow_ranks.cube import cube_of
from meshscope.analyze.explain.slow_ranks.noise import Noise
from meshscope.analyze.explain.slow_ranks.normalise import Line
from meshscope.analyze.explain.slow_ranks.settings import DetectionSettings
from meshscope.analyze.explain.slow_ranks.uncertainty import comparison_of, doubt_of, healthy_spread
from meshscope.probe.schema.layout import ParallelLayout

SETTINGS = DetectionSettings()


def doubt(layout, slope=0.0):
    """Return the doubt about ranks with a noise of 1 % a step and a past of 20 steps."""
    count = layout.world_size
    cube = cube_of(tuple(range(count)), layout)
    line = Line(np.full((1, 1, cube.shape[2], 1), slope), 1, np.zeros((1, 1, 1), bool))
    comparison = comparison_of(cube, cube.present, line)
    noise = Noise(np.full(count, 0.01), 1.0, 100.0)
    return doubt_of(noise, np.zeros(count), comparison, 20, SETTINGS)


def test_a_small_job_is_given_the_usual_spread():
    """Two ranks of unlike silicon would be a slow and a fast one."""
    two = doubt(ParallelLayout(dp=2))
    wanted = (
        4 * (SETTINGS.spread**2 + SETTINGS.wander**2) + 0.01**2 / 20
    )  # The other one is its common mode, too.
    assert two.lasting == pytest.approx([np.sqrt(wanted)] * 2)
    assert np.isnan(doubt(ParallelLayout(pp=4)).lasting).all()


def test_ranks_that_tell_the_work_add_their_own_differences():
    """The noise of a stage with a head would be taken for that of a slow rank."""
    layout = ParallelLayout(pp=2, dp=4)
    plain, reported = doubt(layout), doubt(layout, slope=1.5)
    assert (reported.lasting > plain.lasting).all()
    assert reported.wander == pytest.approx([SETTINGS.wander * np.sqrt(1 + 1.5**2)] * 8)


def test_many_ranks_show_their_spread():
    """Jobs on mixed hardware would be full of suspects."""
    levels = 0.02 * np.random.default_rng(3).standard_normal(64)
    assert healthy_spread(levels, 0.001, 8, SETTINGS) == pytest.approx(0.018, rel=0.2)
    assert healthy_spread(levels, 0.001, 2, SETTINGS) == SETTINGS.spread


def test_the_error_of_a_change_holds_that_of_the_past():
    """A short past would be taken for a certain one."""
    found = doubt(ParallelLayout(dp=4))
    assert (found.error(5, before=20) > found.error(5, before=200)).all()
