"""Rows that the browser makes cells of."""

import json

from dash import html

from meshscope.dashboard.pages.plain_rows import plain_rows
from meshscope.dashboard.pages.shell import name_cell, table


def test_long_tables_have_no_component_for_each_cell():
    """Fails when a page of many rows is slow again: Dash draws a component for each of their cells."""
    columns, rows = ["Rank", "Time"], [[f"rank {one}", f"{one} µs"] for one in range(64)]
    drawn = table(columns, rows, marked=2)
    body = drawn.children.children[1]
    found = json.loads(body.to_plotly_json()["props"]["data-rows"])
    assert found == {"numeric_from": 1, "marked": 2, "rows": rows}
    assert getattr(body, "children", None) is None


def test_names_keep_their_title_and_their_text():
    """Fails when a long kernel name loses what a pointer shows, or a cell its value."""
    name = "<b>" + "k" * 300
    found = json.loads(plain_rows([[name_cell(name), 7, 1.5, None]] * 10, 1, 0) or "")
    shown, title, style = found["rows"][0][0]
    assert len(shown) < len(title)
    assert (title, style) == (name, "ms-name")
    assert found["rows"][0][1:] == ["7", "1.5", ""]


def test_cells_that_are_more_than_text_stay_components():
    """Fails when a link in a table is lost, or a short table waits for a script."""
    linked = [[html.A("rank 1", href="/"), "1"]] * 64
    assert plain_rows(linked, 1, 0) is None
    assert plain_rows([["rank 1", "1"]], 1, 0) is None
