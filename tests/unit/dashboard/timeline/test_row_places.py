"""Rows of a timeline: pinned ones stay readable among hundreds."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tests.unit.dashboard.test_figures import _step

from meshscope.analyze.output.timeline.categories import Category
from meshscope.dashboard.answers.rows import ShownRows
from meshscope.dashboard.answers.wait import WaitArrow
from meshscope.dashboard.figures.timeline import timeline
from meshscope.dashboard.figures.wait import NAME
from meshscope.dashboard.timeline.row_places import row_places

FIGURE_PX = 650


@pytest.mark.parametrize("count", [70, 512, 640, 2000])
@pytest.mark.parametrize("pinned", [1, 2, 16])
def test_a_pinned_row_is_as_high_as_a_line_of_text(count, pinned):
    """Fails when the two rows that somebody compares are a pixel each, among hundreds."""
    places = row_places(count, pinned)
    px = FIGURE_PX / places.total
    assert places.each * px >= 15
    assert places.heights().sum() == places.total
    rows = np.arange(count, dtype=float)
    assert (np.diff(places.on_axis(rows - 0.5)) == places.heights()[:-1]).all()


def test_few_rows_are_all_alike():
    """Fails when a pinned row of a small run has another height than its peers."""
    assert row_places(65, 2).each == 1
    assert row_places(512, 0).total == 512


def test_all_that_is_drawn_is_in_the_rows_of_its_ranks(monkeypatch):
    """Fails when an arrow, a bar or the picture of a pinned rank lies in the row of another one."""
    count = 256
    rows = {"row": range(count), "rank": range(count), "start_ns": 0, "end_ns": 10, "text": ""}
    slices = pd.DataFrame({**rows, "category": int(Category.FORWARD), "microbatch": -1})
    step = replace(
        _step(1), ranks=tuple(range(count)), labels=tuple(map(str, range(count))), slices=slices
    )
    spans = (None, None, *((at, at) for at in range(2, count)))
    shown = ShownRows(count=count, shown=(0, count - 1), each=1, spans=spans)
    wait = WaitArrow(rank=0, row=0, until_ns=5, waited_for=1, from_row=1, came_ns=3)
    places = row_places(count, 2)
    figure = timeline(step, (0, 10), "", rows=shown, wait=wait)
    bars = figure.data[0]
    assert list(bars.y[:3]) == [(places.each - 1) / 2, 1.5 * places.each - 0.5, 2.0 * places.each]
    assert list(bars.width[:3]) == pytest.approx([0.82 * places.each] * 2 + [0.82])
    (arrow,) = (trace for trace in figure.data if trace.name == NAME)
    assert list(arrow.y) == [bars.y[1], bars.y[0]]
    assert figure.layout.yaxis.range == (places.total - 0.5, -0.5)
    assert list(figure.layout.meta["tall"]) == [2, places.each]
    monkeypatch.setattr("meshscope.dashboard.figures.timeline.MAX_BARS", 0)
    picture = timeline(step, (0, 10), "", rows=shown, wait=wait)
    assert picture.layout.images[0].sizey == places.total
