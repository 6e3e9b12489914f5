"""The room that names at the axes are given before plotly looks for it."""

import plotly.graph_objects as go
import pytest

from meshscope.dashboard.figures.margins import margins, text_px


def bars(names, **axis):
    """Return bars with names."""
    figure = go.Figure(go.Bar(x=[1.0] * len(names), y=names, orientation="h"))
    return figure.update_yaxes(**axis)


def test_longer_names_get_more_room():
    """Fails when a figure is drawn twice, because its names need more room than it has."""
    short, long = (margins(bars([name]), 200)["l"] for name in ("tp", "kernel inefficiency"))
    assert long > short + 50
    assert long > text_px("kernel inefficiency") > 100


def test_titles_and_colours_get_room():
    """Fails when the title of an axis or the scale of colours moves the figure after it was drawn."""
    plain, titled = bars(["a"]), bars(["a"], title="row").update_xaxes(title="share")
    before, after = margins(plain, 200), margins(titled, 200)
    assert after["l"] > before["l"]
    assert after["b"] > before["b"]
    cells = go.Figure(go.Heatmap(z=[[1.0]]))
    assert margins(cells, 200)["r"] > before["r"] + 50


@pytest.mark.parametrize(("rows", "height", "is_more"), [(4, 300, False), (640, 760, True)])
def test_low_rows_leave_room_for_their_first_name(rows, height, is_more):
    """Fails when the name of the first of many rows stands out of the figure, and all is drawn twice."""
    figure = bars(["a"], ticktext=["rank 0"], tickvals=[0], range=[rows - 0.5, -0.5])
    assert (margins(figure, height)["t"] > 8) is is_more
