"""Figures: the numbers that are drawn, and names that must not become markup."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze import Bar
from meshscope.analyze.output.timeline.categories import COLOURS, LABELS, Category, palette
from meshscope.analyze.output.timeline.slices import MARK, StepSlices
from meshscope.dashboard.figures.heatmap import rank_step_heatmap
from meshscope.dashboard.figures.mesh_grid import mesh_heatmap
from meshscope.dashboard.figures.theme import GRAPH_CONFIG, plain
from meshscope.dashboard.figures.timeline import MAX_BARS, timeline, uses_tile
from meshscope.dashboard.figures.waterfall import meanings, waterfall
from meshscope.dashboard.runs.mesh import MeshFacet, RankStepMatrix, in_blocks

BARS = [
    Bar(name="useful", frac=0.5, dur_ns=50e6),
    Bar(name="kernel_inefficiency", frac=0.3, dur_ns=30e6),
    Bar(name="exposed_tp_wait", frac=0.2, dur_ns=20e6),
    Bar(name="gc", frac=0.0, dur_ns=0.0),
]


def _step(count: int, text: str = "forward") -> StepSlices:
    starts = np.arange(count) * 10
    slices = pd.DataFrame(
        {"row": 0, "rank": 0, "category": 1, "start_ns": starts, "end_ns": starts + 8}
    ).assign(text=text, microbatch=np.arange(count))
    return StepSlices(
        step=0,
        ranks=(0,),
        labels=("rank 0",),
        origin_ns=0,
        length_ns=count * 10,
        slices=slices,
        undrawn=0,
    )


def test_waterfall_bars_touch_and_sum():
    """Fails when a bar does not begin where the one above ends, or the total is not the whole."""
    trace = waterfall(BARS).data[0]
    assert list(trace.base) == pytest.approx([0, 50, 80, 0])
    assert list(trace.x) == pytest.approx([50, 30, 20, 100])
    assert list(waterfall(BARS).layout.yaxis.ticktext)[-1] == "<b>step time</b>"


def test_waiting_is_hatched():
    """Waiting would be distinguished from transfers by its colour alone."""
    bars = [
        Bar(name=name, frac=1 / 3, dur_ns=1.0)
        for name in ("forward", "exposed_pp_wire", "exposed_pp_wait")
    ]
    assert list(waterfall(bars).data[0].marker.pattern.shape) == ["", "", "/", ""]


def test_waterfall_has_no_row_of_zeros():
    """A class of 25 ns would have a bar of 0.00 % that nobody can see, and no row in the terminal."""
    bars = [*BARS, Bar(name="gc", frac=1e-8, dur_ns=25.0)]
    assert len(waterfall(bars).data[0].x) == len(waterfall(BARS).data[0].x)
    small = [*BARS[:-1], Bar(name="gc", frac=4e-5, dur_ns=1000.0)]
    assert waterfall(small).data[0].x[-1] == pytest.approx(100.004, abs=1e-9)


def test_waterfall_keeps_a_negative_bar():
    """Fails when a wrong peak, which makes the overhead negative, is hidden."""
    bars = [
        Bar(name="useful", frac=1.1, dur_ns=1.0),
        Bar(name="kernel_inefficiency", frac=-0.1, dur_ns=0),
    ]
    trace = waterfall(bars).data[0]
    assert list(trace.base)[1] + list(trace.x)[1] == pytest.approx(100)


def test_waterfall_words():
    """Fails when a colour of the waterfall is not explained."""
    assert list(meanings(BARS).values()) == [
        "compute",
        "compute, slower than it could be",
        "waiting for other ranks",
    ]


def test_every_part_of_compute_has_its_bar():
    """Fails when a class of the account is drawn without words, or as if it were something else."""
    names = ["useful", "recompute", "contention", "kernel_inefficiency", "exposed_unknown"]
    bars = [Bar(name=name, frac=0.2, dur_ns=20e6) for name in names]
    figure = waterfall(bars)
    assert list(figure.layout.yaxis.ticktext) == [
        "useful model FLOPs at peak",
        "recompute",
        "compute, slowed by communication",
        "compute, slower than peak",
        "device work of unknown kind",
        "<b>step time</b>",
    ]
    assert list(meanings(bars).values()) == [
        "compute",
        "compute, slower than it could be",
        "device work of unknown kind",
    ]
    colours = list(figure.data[0].marker.color)
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert colours[4] == COLOURS[Category.UNKNOWN]


def test_names_of_rows_do_not_cover_each_other():
    """Fails when pinned ranks of a run of many, a pixel apart, are named in the same place."""
    labels = [f"{MARK}rank {at}" if at in (0, 1, 2, 60) else f"rank {at}" for at in range(128)]
    rows = {"row": range(128), "rank": range(128), "start_ns": 0, "end_ns": 10, "text": ""}
    slices = pd.DataFrame({**rows, "category": int(Category.FORWARD), "microbatch": -1})
    step = replace(_step(1), ranks=tuple(range(128)), labels=tuple(labels), slices=slices)
    axis = timeline(step, (0, 10), "").layout.yaxis
    assert axis.ticktext[0] == f"{MARK}rank 0 +1"
    assert f"{MARK}rank 60" in axis.ticktext
    apart = [other - one for one, other in zip(axis.tickvals, axis.tickvals[1:], strict=False)]
    assert min(apart) >= 2


def test_few_slices_are_bars():
    """Fails when a readable number of slices is not drawn one by one."""
    figure = timeline(_step(5), (0, 50), "/at.json?")
    assert [len(trace.x) for trace in figure.data] == [5]
    assert not figure.layout.images


def test_bars_with_room_say_their_microbatch():
    """Nobody could follow a microbatch through the stages, or numbers would cover what they stand in."""
    assert list(timeline(_step(5), (0, 50), "").data[0].text) == ["0", "1", "2", "3", "4"]
    assert not any(timeline(_step(5), (0, 1000), "").data[0].text)


def test_many_slices_are_a_picture():
    """Fails when more slices are sent to the browser than it can draw."""
    step = _step(MAX_BARS + 1)
    assert uses_tile(step, (0, step.length_ns))
    figure = timeline(step, (0, step.length_ns), "/at.json?")
    # As an address Plotly would have the browser fetch it, and convert it, before it is seen.
    assert figure.layout.images[0].source.startswith("data:image/png;base64,")
    assert sum(trace.type == "bar" for trace in figure.data) == 0
    assert dict(figure.layout.meta)["is_picture"]
    assert dict(figure.layout.meta)["instant_url"] == "/at.json?"
    assert not uses_tile(step, (0, 1000))


def test_a_name_is_not_markup():
    """Fails when a kernel name can draw a link, or loses letters, in a hover."""
    figure = timeline(_step(1, text="f<a href='//x'>%{x}&amp;"), (0, 10), "/at.json?")
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


def _slow_among(ranks: int, steps: int, slow: int) -> RankStepMatrix:
    values = np.ones((ranks, steps))
    values[slow] = 1.2
    numbers = (tuple(range(ranks)), tuple(range(steps)))
    return RankStepMatrix(
        ranks=numbers[0], steps=numbers[1], values=values, middle=1.0, meaning="m"
    )


@pytest.mark.parametrize("ranks", [8, 100, 305, 306, 1024, 4001])
@pytest.mark.parametrize("steps", [6, 2000])
def test_one_slow_rank_is_seen_among_any_number(ranks, steps):
    """Fails when lines between cells take the cells, or a slow rank is averaged away."""
    figure = rank_step_heatmap(_slow_among(ranks, steps, slow=5))
    (trace,) = figure.data
    rows, columns = np.array(trace.z).shape
    assert (figure.layout.height - 110) / rows >= 2
    assert 600 / columns >= 2
    assert 2 * trace.ygap < (figure.layout.height - 110) / rows
    assert 2 * trace.xgap < 600 / columns
    (slow,) = set(np.argwhere(np.array(trace.z) == 1.2)[:, 0])
    assert set(trace.customdata[slow, :, 0]) == {5}
    assert list(trace.y)[1] == f"rank {-(-ranks // rows)}"


@pytest.mark.parametrize(("data", "tensor"), [(4, 1), (512, 1), (64, 16), (2048, 8)])
def test_one_slow_rank_is_seen_in_any_grid(data, tensor):
    """Fails when the place of the slow rank is white in the mesh of a large job."""
    facets = []
    for tp in range(tensor):
        slowdown = np.ones((data, 2))
        slowdown[3, 1] = 1.2 if tp == 0 else 1.0
        rank = np.arange(data * 2).reshape(data, 2)
        facets.append(MeshFacet(tp=tp, slowdown=slowdown, rank=rank))
    figure = mesh_heatmap(facets)
    (grid,) = figure.data
    cell = np.diff(grid.y)[1] * (figure.layout.height - 110) / (grid.y[-1] - grid.y[0])
    assert cell >= 1.5
    assert 2 * grid.ygap < cell
    assert np.nanmax(np.array(grid.z)) == 1.2
    assert grid.customdata[np.array(grid.z) == 1.2].tolist() == [[7, "tp0, dp3, pp1"]]


def test_a_block_without_a_value_is_a_gap():
    """Fails when ranks without a step are painted, or a block loses the place of its value."""
    values = np.array([[np.nan, 1.0], [np.nan, 3.0], [2.0, np.nan]])
    blocks = in_blocks(values, 2, 2)
    np.testing.assert_array_equal(blocks.values, [[np.nan, 3.0], [2.0, np.nan]])
    assert (blocks.row[0, 1], blocks.column[0, 1], blocks.row[1, 0]) == (1, 1, 2)


def test_one_grid_for_each_tensor_rank():
    """Fails when a tensor rank has no grid, or its cells name other ranks."""
    facets = [
        MeshFacet(tp=tp, slowdown=np.ones((2, 3)), rank=np.arange(6).reshape(2, 3) + 6 * tp)
        for tp in range(5)
    ]
    figure = mesh_heatmap(facets)
    # Rows: a title and two data ranks, twice. Columns: three stages and a space, four times.
    (grid,) = figure.data
    assert np.array(grid.z).shape == (6, 15)
    assert grid.text[5][2] == "r29<br>1.00"
    assert [one.text for one in figure.layout.annotations] == [
        f"tensor rank {tp}" for tp in range(5)
    ]
    assert len(figure.layout.meta["table"]["rows"]) == 5 * 6
    assert figure.layout.meta["table"]["rows"][-1] == ["tp4", "dp1", "pp2", 1.0]
    assert list(figure.layout.xaxis.ticktext[:3]) == ["pp0", "pp1", "pp2"]


def test_every_category_has_a_colour_and_a_name():
    """Fails when a category would be drawn in the colour of another, or without a name."""
    assert set(COLOURS) == set(LABELS) == set(Category)
    assert len(set(COLOURS.values())) == len(Category)
    assert palette()[3:6] == bytes.fromhex(COLOURS[Category.FORWARD][1:])


# G. M. Machado et al., "A physiologically-based model for simulation of color vision
# deficiency" (2009), severity 1, on linear RGB.
_VISION = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
_TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
_WHITE_XYZ = [0.9505, 1.0, 1.089]


def _seen(colour: str, vision: list[list[float]]) -> np.ndarray:
    """Return a colour as CIELAB, as it looks to a kind of vision."""
    code = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(code <= 0.04045, code / 12.92, ((code + 0.055) / 1.055) ** 2.4)
    xyz = np.array(_TO_XYZ) @ np.clip(np.array(vision) @ linear, 0, 1) / np.array(_WHITE_XYZ)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", [np.eye(3).tolist(), *_VISION.values()], ids=["", *_VISION])
def test_unknown_work_stays_apart_for_every_eye(vision):
    """Fails when a colour-blind reader takes work of unknown kind for something else."""
    own = _seen(COLOURS[Category.UNKNOWN], vision)
    others = set(Category) - {Category.UNKNOWN}
    distance = {other: np.linalg.norm(_seen(COLOURS[other], vision) - own) for other in others}
    assert min(distance.values()) > 20, distance


def test_charts_cannot_be_sent_to_a_vendor():
    """Fails when a figure may offer to upload itself."""
    assert GRAPH_CONFIG["showSendToCloud"] is False
    assert GRAPH_CONFIG["plotlyServerURL"] == ""
