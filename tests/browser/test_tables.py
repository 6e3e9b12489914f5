"""The numbers of figures as tables, and the words of pages."""

import csv
import json

import pytest
from playwright.sync_api import expect
from tests.browser.conftest import TRAINED, figure_data

pytestmark = pytest.mark.browser
FIGURES = {
    "overview": ["waterfall-graph", "trend-graph"],
    "timeline": ["timeline-graph"],
    "mesh": ["rank-step-graph", "mesh-graph"],
    "communication": ["bandwidth-graph", "pairs-graph"],
    "memory": ["memory-graph", "memory-time-graph"],
    "stragglers?fix=stragglers": ["whatif-recorded-graph", "whatif-repaired-graph"],
}


def _opened(page, graph: str):
    """Open the table of a figure and return it."""
    figure = page.locator("figure", has=page.locator(f"#{graph}"))
    expect(figure.locator(".plot-container")).to_be_visible()
    figure.get_by_text("View as table").click()
    table = figure.locator(".ms-figure-rows table")
    expect(table.locator("tbody tr").first).to_be_visible()
    return table


def _rows(table) -> list[list[str]]:
    return table.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("place", FIGURES)
def test_every_figure_has_a_table(page, place):
    """Fails when a figure has no table, or one without names of its columns."""
    page.goto(f"/run/{TRAINED}/{place}")
    for graph in FIGURES[place]:
        table = _opened(page, graph)
        names = table.locator("th").all_text_contents()
        assert len(names) >= 2, graph
        assert all(names), (graph, names)
        assert len(_rows(table)[0]) == len(names)
    expect(page.locator(".ms-figure-data")).to_have_count(page.locator("#page .dash-graph").count())


def test_a_table_has_the_numbers_of_its_figure_and_sorts(page):
    """Fails when a table differs from the drawn bars, sorts numbers as text, or is saved otherwise."""
    page.goto(f"/run/{TRAINED}/overview")
    table = _opened(page, "waterfall-graph")
    (bars,) = figure_data(page, "waterfall-graph")
    rows = _rows(table)
    assert [float(row[1]) for row in rows] == pytest.approx(bars["x"], rel=1e-4)
    assert rows[-1][0] == "step time"
    by_share = table.get_by_role("button", name="share of the step time, %")
    by_share.click()
    expect(table.locator("th[aria-sort=descending]")).to_have_count(1)
    by_share.click()
    expect(table.locator("th[aria-sort=ascending]")).to_have_count(1)
    by_share.click()
    expect(table.locator("th[aria-sort=descending]")).to_have_text("share of the step time, %")
    shares = [float(row[1]) for row in _rows(table)]
    assert shares == sorted(shares, reverse=True)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as CSV").click()
    assert saved.value.suggested_filename == "waterfall-graph.csv"
    with open(saved.value.path(), encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["class", "share of the step time, %"]
    assert [float(line[1]) for line in lines[1:]] == pytest.approx(shares, rel=1e-4)


def test_the_table_of_a_timeline_follows_its_window(page):
    """Fails when the sums of a window are not those of its slices, or stay when the window changes."""
    page.goto(f"/run/{TRAINED}/timeline?step=2")
    table = _opened(page, "timeline-graph")
    twin = page.request.get(page.locator("#json-link").get_attribute("href")).json()
    whole = {(f"rank {row['rank']}", row["class"]): row["dur_ns"] / 1e6 for row in twin["sums"]}
    shown = {(row[0], row[1]): float(row[2]) for row in _rows(table) if row[0] != "all (mean)"}
    assert shown == pytest.approx(whole, rel=1e-4)
    slices = sum(one["end_ns"] - one["start_ns"] for one in twin["slices"]) / 1e6
    assert sum(whole.values()) == pytest.approx(slices)
    first = table.locator("tbody tr").first.inner_text()
    page.keyboard.press("w")
    expect(table.locator("tbody tr").first).not_to_have_text(first)


def test_the_glossary_has_the_words_of_the_page(page, project_dir):
    """Fails when a word of the page is missing in the drawer, or has another meaning than in the docs."""
    known = json.loads((project_dir / "dashboard/assets/glossary.json").read_text("utf-8"))
    meaning = {word: one["meaning"] for one in known for word in one["words"]}
    page.goto(f"/run/{TRAINED}/overview")
    expect(page.locator("#waterfall-graph")).to_be_visible()
    page.get_by_role("button", name="Glossary").click()
    drawer = page.get_by_role("complementary", name="Glossary")
    expect(drawer.locator("dt", has_text="removal gain")).to_be_visible()
    expect(drawer.locator("dd", has_text=meaning["removal gain"])).to_be_visible()
    expect(drawer.locator("dt", has_text="dormant")).to_have_count(0)
    drawer.get_by_role("searchbox").fill("dorm")
    expect(drawer.locator("dt")).to_have_text(["dormant"])
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)
    expect(page.get_by_role("button", name="Glossary")).to_be_focused()


def test_an_open_table_follows_the_zoom(page):
    """Fails when each zoom draws a new figure, closes its table, or leaves the numbers of the window before."""
    page.goto(f"/run/{TRAINED}/timeline?step=2")
    table = _opened(page, "timeline-graph")
    table.get_by_role("button", name="slices").click()
    expect(table.locator("th[aria-sort=descending]")).to_have_text("slices")
    before = _rows(table)
    page.locator("#timeline-graph").evaluate("figure => { figure.isTheSame = true; }")
    page.keyboard.press("w")
    page.wait_for_url("**t0=**")
    page.wait_for_function(
        "() => document.querySelector('#timeline-graph .js-plotly-plot').layout.xaxis.range[0] > 0"
    )
    expect(table.locator("th[aria-sort=descending]")).to_have_text("slices")
    page.wait_for_function(
        "before => document.querySelector('.ms-figure-rows td:nth-child(3)').textContent !== before",
        arg=before[0][2],
    )
    assert page.locator("#timeline-graph").evaluate("figure => figure.isTheSame")
    expect(page.locator("#timeline-graph-caption")).not_to_contain_text("Whole step shows all")


def _cells(page, title: str, column: int) -> list[str]:
    """Return the shown cells of a column of the table in a card."""
    card = page.locator(".ms-card", has=page.get_by_role("heading", name=title, exact=True))
    return card.locator(f"tbody tr:not([hidden]) td:nth-child({column})").all_text_contents()


def test_tables_of_pages_sort_search_and_page(page, profiled_run):
    """Fails when a table of many kernels can be neither sorted, nor searched, nor paged, nor saved."""
    page.goto(f"/run/{profiled_run}/kernels")
    card = page.locator(".ms-card", has=page.get_by_role("heading", name="Kernels", exact=True))
    expect(card.get_by_role("status")).to_contain_text("1–25 of")
    whole = card.locator("tbody tr").count()
    assert len(_cells(page, "Kernels", 1)) == 25 < whole
    first = _cells(page, "Kernels", 1)
    card.get_by_role("button", name="next rows").click()
    assert not set(_cells(page, "Kernels", 1)[:3]) & set(first[:3])
    count = card.locator("th", has_text="Count")
    count.click()
    expect(count).to_have_attribute("aria-sort", "descending")
    counts = [int(cell.replace(",", "")) for cell in _cells(page, "Kernels", 3)]
    assert counts == sorted(counts, reverse=True)
    count.press("Enter")
    expect(count).to_have_attribute("aria-sort", "ascending")
    card.get_by_role("searchbox").fill("nccl")
    expect(card.locator("tbody tr:not([hidden])").first).to_contain_text("nccl")
    assert all("nccl" in cell.lower() for cell in _cells(page, "Kernels", 1))
    card.get_by_role("searchbox").fill("no such kernel")
    expect(card.get_by_role("status")).to_have_text("no such row")
    with page.expect_download() as saved:
        card.get_by_role("button", name="Kernels, as CSV").click()
    assert saved.value.suggested_filename == "kernels.csv"
    with open(saved.value.path(), encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines[0][:3] == ["Kernel", "Where", "Count"]
    assert len(lines) == whole + 1


def test_times_of_several_units_sort_by_length(page):
    """Fails when 2 s is sorted before 30 ms, or sorting a table moves the page."""
    page.goto(f"/run/{TRAINED}/mesh")
    card = page.locator(".ms-card", has=page.get_by_role("heading", name="Ranks", exact=True))
    head = card.locator("th", has_text="Waited a step")
    expect(head).to_have_attribute("tabindex", "0")
    head.scroll_into_view_if_needed()
    before = page.locator("main").bounding_box()
    head.click()
    sizes = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}
    shown = [cell.split() for cell in _cells(page, "Ranks", 5)]
    times = [float(number) * sizes[unit] for number, unit in shown]
    assert times == sorted(times, reverse=True)
    assert page.locator("main").bounding_box() == before


def test_rows_that_come_as_data_are_text_and_follow_it(page):
    """Fails when a cell is read as HTML, new numbers leave old rows, or a page of a live job unsorts its table."""
    page.goto(f"/run/{TRAINED}/mesh")
    card = page.locator(".ms-card", has=page.get_by_role("heading", name="Ranks", exact=True))
    expect(card.locator(".ms-sheet")).to_be_visible()
    fill = """(body, rows) => {
        body.dataset.rows = JSON.stringify({numeric_from: 1, marked: 1, rows});
    }"""
    card.locator("tbody").evaluate(
        fill, [["<img src=x>", "2 ms"], [["n", "long", "ms-name"], "1 s"]]
    )
    expect(card.locator("tbody tr")).to_have_count(2)
    assert _cells(page, "Ranks", 1) == ["<img src=x>", "n"]
    expect(card.locator("tbody .ms-name")).to_have_attribute("title", "long")
    expect(card.locator("tbody tr").first).to_have_class("ms-marked")
    card.locator("th").nth(1).click()
    assert _cells(page, "Ranks", 2) == ["1 s", "2 ms"]
    card.locator("tbody").evaluate(fill, [[f"rank {one}", f"{one} ms"] for one in range(30)])
    expect(card.locator("tbody tr")).to_have_count(30)
    assert _cells(page, "Ranks", 1)[:2] == ["rank 29", "rank 28"]
    assert len(_cells(page, "Ranks", 1)) == 25
