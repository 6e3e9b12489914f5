"""Links that are the same in every step: what several axes send at once keeps a link busy once."""

import numpy as np
import pandas as pd
import pytest
from tests.shared_links import over_one_link

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.causes.steady_links import steady_links
from meshscope.analyze.explain.causes.wires import between_ranks
from meshscope.probe.schema.layout import ParallelLayout

FAST, TIMES = 1.25e9, 10
LAYOUT = ParallelLayout(dp=4)


def link_of(*axes):
    """Return the one link of two hosts over which these axes send the same bytes, at the same times."""
    trace = over_one_link(LAYOUT, FAST / TIMES, seed=0, per_host=2, stated=FAST, cv=0.0)
    frame = between_ranks(communication_events(trace, step_windows(trace)).frame, trace)
    frame = pd.concat([frame.assign(axis=axis) for axis in axes], ignore_index=True)
    (link,) = steady_links(frame, trace, np.zeros(len(frame)))
    return link


def test_axes_that_send_at_once_share_the_time_of_their_link():
    """Fails when two axes at once halve the rate of a link, and its price counts the same time twice."""
    one, both = link_of("dp"), link_of("dp", "tp")
    assert set(both.axes) == {"dp", "tp"}
    assert both.rate_bytes_per_s == pytest.approx(2 * one.rate_bytes_per_s)
    assert 1 - both.excess_frac == pytest.approx(2 * (1 - one.excess_frac), rel=0.01)
