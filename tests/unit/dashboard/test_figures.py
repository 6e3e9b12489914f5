"""Figures: the numbers that are drawn, and names that must not become markup."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze import Bar
from meshscope.dashboard.categories import COLOURS, LABELS, Category, palette
from meshscope.dashboard.figures.heatmap import mesh_heatmap, rank_step_heatmap
from meshscope.dashboard.figures.timeline import MAX_BARS, timeline, uses_tile
from meshscope.dashboard.figures.waterfall import meanings, waterfall
from meshscope.dashboard.mesh import MeshFacet, RankStepMatrix
from meshscope.dashboard.slices import StepSlices
from meshscope.dashboard.theme import GRAPH_CONFIG, plain

BARS = [
    Bar(name="useful", frac=0.5, dur_ns=50e6),
    Bar(name="compute_overhead", frac=0.3, dur_ns=30e6),
    Bar(name="exposed_tp_wait", frac=0.2, dur_ns=20e6),
    Bar(name="gc", frac=0.0, dur_ns=0.0),
]


def _step(count: int, text: str = "forward") -> StepSlices:
    starts = np.arange(count) * 10
    slices = pd.DataFrame(
        {"row": 0, "rank": 0, "category": 1, "start_ns": starts, "end_ns": starts + 8}
    ).assign(text=text)
    return StepSlices(
        step=0, ranks=(0,), labels=("rank 0",), length_ns=count * 10, slices=slices, undrawn=0
    )


def test_waterfall_bars_touch_and_sum():
    """Fails when a bar does not begin where the one above ends, or the total is not the whole."""
    trace = waterfall(BARS).data[0]
    assert list(trace.base) == pytest.approx([0, 50, 80, 0])
    assert list(trace.x) == pytest.approx([50, 30, 20, 100])
    assert list(waterfall(BARS).layout.yaxis.ticktext)[-1] == "<b>step time</b>"


def test_waterfall_keeps_a_negative_bar():
    """Fails when a wrong peak, which makes the overhead negative, is hidden."""
    bars = [
        Bar(name="useful", frac=1.1, dur_ns=1.0),
        Bar(name="compute_overhead", frac=-0.1, dur_ns=0),
    ]
    trace = waterfall(bars).data[0]
    assert list(trace.base)[1] + list(trace.x)[1] == pytest.approx(100)


def test_waterfall_words():
    """Fails when a colour of the waterfall is not explained."""
    assert list(meanings(BARS).values()) == [
        "compute",
        "compute, slower than peak",
        "waiting for other ranks",
    ]


def test_few_slices_are_bars():
    """Fails when a readable number of slices is not drawn one by one."""
    figure = timeline(_step(5), (0, 50), "/tile.png")
    assert [len(trace.x) for trace in figure.data] == [5]
    assert not figure.layout.images


def test_many_slices_are_a_picture():
    """Fails when more slices are sent to the browser than it can draw."""
    step = _step(MAX_BARS + 1)
    assert uses_tile(step, (0, step.length_ns))
    figure = timeline(step, (0, step.length_ns), "/tile.png?v=1")
    assert figure.layout.images[0].source == "/tile.png?v=1"
    assert sum(trace.type == "bar" for trace in figure.data) == 0
    assert not uses_tile(step, (0, 1000))


def test_a_name_is_not_markup():
    """Fails when a kernel name can draw a link, or loses letters, in a hover."""
    figure = timeline(_step(1, text="f<a href='//x'>%{x}&amp;"), (0, 10), "")
    hover = figure.data[0].hovertext[0]
    assert "<a" not in hover
    assert "%{" not in hover
    assert "f&lt;a" in hover
    assert plain("a&b") == "a&amp;b"


def test_heatmap_of_ranks_and_steps():
    """Fails when cells are lost, or noise is painted as loud as a real slowdown."""
    values = np.array([[1.0, 1.01, np.nan], [1.5, 1.4, 1.45]])
    matrix = RankStepMatrix(ranks=(0, 1), steps=(3, 4, 5), values=values, middle=1.0, meaning="m")
    trace = rank_step_heatmap(matrix).data[0]
    assert np.array(trace.z).shape == (2, 3)
    assert (trace.zmin, trace.zmid, trace.zmax) == pytest.approx((0.5, 1.0, 1.5))
    quiet = RankStepMatrix(
        ranks=(0,), steps=(3,), values=np.array([[1.001]]), middle=1.0, meaning="m"
    )
    assert rank_step_heatmap(quiet).data[0].zmax >= 1.05
    share = RankStepMatrix(
        ranks=(0,), steps=(3,), values=np.array([[0.2]]), middle=None, meaning="m"
    )
    assert rank_step_heatmap(share).data[0].zmin == 0.0


def test_one_grid_for_each_tensor_rank():
    """Fails when a tensor rank has no grid, or its cells name other ranks."""
    facets = [
        MeshFacet(tp=tp, slowdown=np.ones((2, 3)), rank=np.arange(6).reshape(2, 3) + 6 * tp)
        for tp in range(5)
    ]
    figure = mesh_heatmap(facets)
    assert len(figure.data) == 5
    assert figure.data[4].text[1][2] == "r29<br>1.00"


def test_every_category_has_a_colour_and_a_name():
    """Fails when a category would be drawn in the colour of another, or without a name."""
    assert set(COLOURS) == set(LABELS) == set(Category)
    assert len(set(COLOURS.values())) == len(Category)
    assert palette()[3:6] == bytes.fromhex(COLOURS[Category.FORWARD][1:])


def test_charts_cannot_be_sent_to_a_vendor():
    """Fails when a figure may offer to upload itself."""
    assert GRAPH_CONFIG["showSendToCloud"] is False
    assert GRAPH_CONFIG["plotlyServerURL"] == ""
