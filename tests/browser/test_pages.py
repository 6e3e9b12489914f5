"""What a visitor sees and can do, on real runs in a real browser."""

import os
import re
import shutil
from contextlib import suppress

import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError
from playwright.sync_api import expect
from tests.browser.conftest import HUNG_RANK, SLOW_RANK, TRAINED, figure_data
from tests.browser.proxy import proxied

from meshscope.dashboard.screenshot import served
from meshscope.dashboard.serving.security import Access

pytestmark = pytest.mark.browser
OUTLINES = "critical path"
"""Name of the trace that outlines the path."""
DRAGS = 4
SLOW_ANSWERS = """
    const answer = window.fetch;
    window.fetch = async (url, asked) => {
      const words = String(asked?.body ?? "");
      if (words.includes('"timeline-url.search')) await new Promise((go) => setTimeout(go, 900));
      if (words.includes('timeline-content.children')) await new Promise((go) => setTimeout(go, 500));
      return answer(url, asked);
    };
"""
"""A connection on which a button is answered after the figure that was asked for before it."""
PREFIX = "/lab/meshscope"
"""Path below which a proxy serves the dashboard."""


def _open_timeline(page, query: str = "") -> None:
    page.goto(f"/run/{TRAINED}/timeline{query}")
    expect(page.locator("#timeline-graph .bars .point").first).to_be_attached()


def _wait_until_listening(page, graph: str, event: str = "plotly_relayout") -> None:
    """Wait until the page hears a zoom or a click: figures are drawn a moment before that."""
    page.wait_for_function(
        "([id, event]) => document.querySelector(`#${id} .js-plotly-plot`)?._ev?.listenerCount(event)",
        arg=[graph, event],
    )


def _path_bars(page) -> list[float]:
    """Return the lengths of the outlined pieces, ms, once they are drawn."""
    page.wait_for_function(
        """name => (document.querySelector('#timeline-graph .js-plotly-plot')?._fullData || [])
            .some(trace => trace.name === name)""",
        arg=OUTLINES,
    )
    return next(
        trace["x"] for trace in figure_data(page, "timeline-graph") if trace["name"] == OUTLINES
    )


def _point_at_widest_piece(page) -> None:
    pieces = page.locator("#timeline-graph .trace.bars").last.locator(".point path").all()
    boxes = [box for box in (piece.bounding_box() for piece in pieces) if box is not None]
    widest = max(boxes, key=lambda box: box["width"])
    page.mouse.move(widest["x"] + widest["width"] / 2, widest["y"] + widest["height"] / 2)


def _number(pattern: str, words: str) -> float:
    return float(re.search(pattern, words)[1].replace(",", ""))


def test_the_run_list_shows_every_entry(page):
    """Fails when a run, its layout or top finding, or an unreadable file is not in the list."""
    page.goto("/")
    rows = page.locator("#runs-grid .ag-center-cols-container .ag-row")
    trained = rows.filter(has=page.get_by_role("link", name=TRAINED, exact=True))
    expect(trained).to_contain_text("PP2 DP2")
    expect(trained).to_contain_text(f"Rank {SLOW_RANK}")
    expect(rows.filter(has_text="notes.txt")).to_contain_text("unreadable")
    page.locator("#runs-filter").fill("unreadable")
    expect(rows).to_have_count(1)
    # Other tests add runs of their own, whose findings may name the same rank.
    page.locator("#runs-filter").fill(f"rank {SLOW_RANK}")
    expect(rows.filter(has_text="notes.txt")).to_have_count(0)
    expect(trained).to_have_count(1)
    page.locator("#runs-filter").fill("rank 77")
    expect(rows).to_have_count(0)
    page.locator("#runs-filter").fill("")
    expect(page).to_have_title("Runs · meshscope")
    trained.get_by_role("link", name=TRAINED, exact=True).click()
    expect(page.get_by_role("heading", name="Where the step time went")).to_be_visible()
    assert page.url.endswith(f"/run/{TRAINED}/overview")
    expect(page).to_have_title(f"Overview · {TRAINED} · meshscope")


def test_the_filter_takes_numbers_whole(page):
    """Fails when a number is found inside another one, or apart from the word before it."""
    page.goto("/")
    page.wait_for_function("!!window.dashAgGridFunctions?.matchesWords")
    row = "demo\nRank 0 takes 65% longer than its 5 peers\nRanks 3 and 9 did not\n1.04 s\ndp-slow_7"
    matches = "([words, row]) => dashAgGridFunctions.matchesWords(words.split(' '), row)"
    present = ["rank 0", "rank 3", "ranks 9", "dem longer", "5", "65", "slow", "demo rank 9", "65%"]
    absent = ["rank 5", "rank 6", "4", "04", "rank 0 7 x", "(", "0 peers 12"]
    found = [words for words in present + absent if page.evaluate(matches, [words, row])]
    assert found == present


def test_enter_opens_the_run_of_a_row(page):
    """Fails when a run cannot be opened without a mouse."""
    page.goto("/")
    cell = page.locator("#runs-grid .ag-row", has_text=TRAINED).locator(".ag-cell").first
    expect(cell).to_be_visible()
    cell.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/run/{TRAINED}/overview$"))


def test_a_run_that_went_away_is_reported(page, runs_dir):
    """Fails when a page of a deleted run answers a click with nothing."""
    shutil.copytree(runs_dir / TRAINED, runs_dir / "gone")
    page.goto("/run/gone/timeline?step=1")
    expect(page.locator("#timeline-graph .bars .point").first).to_be_attached()
    shutil.rmtree(runs_dir / "gone")
    page.get_by_role("button", name="Next").click()
    expect(page.locator(".ms-notice")).to_contain_text("cannot be read any more")


def test_the_waterfall_sums_to_the_step(page):
    """Fails when the drawn bars do not chain up to 100 %, or lose their labels."""
    page.goto(f"/run/{TRAINED}/overview")
    labels = page.locator("#waterfall-graph .ytick")
    expect(labels.last).to_have_text("step time")
    assert "PP communication: waiting" in labels.all_text_contents()
    (bars,) = figure_data(page, "waterfall-graph")
    # Classes of 0.00 %, each below a two hundredth of a per cent, have no bar.
    assert sum(bars["x"][:-1]) == pytest.approx(100, abs=0.05)
    assert bars["x"][-1] == pytest.approx(100, abs=1e-6)
    expect(page.locator("figcaption").first).to_contain_text("The bars sum to 100.0 %")
    expect(page.locator(".ms-key", has_text="Slowest rank")).to_contain_text(f"rank {SLOW_RANK}")


def test_the_first_finding_names_the_slow_rank(page):
    """Fails when the injected fault is not the first thing to fix, with evidence and remedy."""
    page.goto(f"/run/{TRAINED}/findings")
    first = page.locator(".ms-finding").first
    expect(first).to_contain_text("straggler rank")
    expect(first.get_by_role("heading", level=2)).to_contain_text(f"Rank {SLOW_RANK} ")
    expect(first.locator(".ms-evidence li").first).to_be_visible()
    first.get_by_role("link", name="See the timeline").click()
    expect(page.get_by_role("heading", name="Pipeline timeline")).to_be_visible()


def test_the_timeline_follows_the_step_selector(page):
    """Fails when another step shows the same bars, or the address does not say which step."""
    _open_timeline(page, "?step=1")
    before = figure_data(page, "timeline-graph")
    assert {trace["type"] for trace in before} == {"bar"}
    assert sum(len(trace["x"]) for trace in before) >= 4 * 2 * 2
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("heading", name="Step 2")).to_be_visible()
    assert page.url.endswith("?step=2")
    assert page.locator("#json-link").get_attribute("href").endswith("timeline.json?step=2")
    assert figure_data(page, "timeline-graph") != before
    page.locator("#timeline-step").click()
    page.get_by_role("option", name="step 1").click()
    expect(page.get_by_role("heading", name="Step 1")).to_be_visible()
    assert figure_data(page, "timeline-graph") == before
    page.locator("#timeline-rank").fill(f"rank {SLOW_RANK}")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=f"Step 1, rank {SLOW_RANK} and")).to_be_visible()
    assert page.url.endswith(f"?step=1&rank={SLOW_RANK}")


def test_a_click_at_once_after_arrival_counts(page):
    """Fails when a page draws once more what it came with, and a click meanwhile is lost."""
    page.goto(f"/run/{TRAINED}/overview")
    page.get_by_role("link", name="Timeline", exact=True).click()
    shown = page.get_by_role("heading", name=re.compile(r"^Step \d+$"))
    step = int(_number(r"Step (\d+)", shown.inner_text()))
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_role("heading", name=f"Step {step - 1}")).to_be_visible()
    assert page.url.endswith(f"?step={step - 1}")


def test_a_selection_goes_along(page):
    """Fails when a click in the mesh does not select, or other pages lose what is selected."""
    page.goto(f"/run/{TRAINED}/mesh?metric=wait")
    _wait_until_listening(page, "rank-step-graph", "plotly_click")
    cells = page.locator("#rank-step-graph .nsewdrag").first
    box = cells.bounding_box()
    # The lowest row is the last of the four ranks, the first column the first analysed step.
    cells.click(position={"x": 5, "y": box["height"] - 5})
    page.wait_for_url(re.compile(r"\?step=\d+&rank=3&metric=wait$"))
    step = int(_number(r"step=(\d+)", page.url))
    expect(page.locator("figcaption").first).to_contain_text(f"Selected: rank 3 and step {step}.")
    page.get_by_role("link", name="Timeline", exact=True).click()
    expect(page.get_by_role("heading", name=f"Step {step}, rank 3 and")).to_be_visible()
    page.get_by_role("link", name="Mesh", exact=True).click()
    expect(page.locator("figcaption").first).to_contain_text(f"rank 3 and step {step}.")
    expect(page.locator("#mesh-metric input:checked")).to_have_value("wait")


def test_two_runs_side_by_side(page, runs_dir):
    """Fails when the last like run is not compared with, another cannot be chosen, or going back loses it."""
    for hours, name in enumerate(("again", "earlier"), start=1):
        if not (runs_dir / name).exists():
            shutil.copytree(runs_dir / TRAINED, runs_dir / name)
            for place in (runs_dir / name).rglob("*"):
                then = place.stat().st_mtime - 3600 * hours
                os.utime(place, (then, then))
    page.goto("/")
    expect(page.locator("#runs-grid .ag-row", has_text="earlier")).to_contain_text("ms")
    page.goto(f"/run/{TRAINED}/compare?rank=1")
    expect(page.locator(".ms-key", has_text="Change of the step")).to_contain_text("+0.0 %")
    expect(page.locator("#compare-before")).to_have_value("again")
    expect(page.locator(".ms-gate")).to_contain_text("pass")
    page.locator("#compare-before").click()
    page.get_by_role("option", name="earlier").click()
    page.wait_for_url("**/compare?rank=1&before=earlier")
    expect(page.locator(".ms-keys")).to_contain_text("earlier")
    page.go_back()
    expect(page.locator("#compare-before")).to_have_value("again")


def test_everything_is_below_the_path_of_a_proxy(browser, runs_dir):
    """Fails when a link, script, picture or answer of a page is asked for beside the path of a proxy."""
    wrong = []
    with served(runs_dir, Access(prefix=PREFIX)) as behind:
        with proxied(behind, PREFIX, takes_path_off=True) as front:
            context = browser.new_context(base_url=front)
            page = context.new_page()
            page.on("response", lambda answer: answer.status >= 400 and wrong.append(answer.url))
            page.goto(f"{PREFIX}/")
            page.locator("#runs-grid .ag-row", has_text=TRAINED).get_by_role("link").first.click()
            page.get_by_role("link", name="Timeline", exact=True).click()
            expect(page.locator("#timeline-graph .bars .point").first).to_be_attached()
            page.get_by_role("button", name="Next").click()
            expect(page).to_have_url(re.compile(rf"{PREFIX}/run/{TRAINED}/timeline\?step=\d+$"))
            expect(page).to_have_title(f"Timeline · {TRAINED} · meshscope")
            address = page.locator("#json-link").get_attribute("href")
            assert page.request.get(address).json()["run_id"] == TRAINED
            page.get_by_role("link", name="meshscope").click()
            expect(page.locator("#runs-grid")).to_be_visible()
            context.close()
        with proxied(behind, PREFIX, takes_path_off=False) as front:
            context = browser.new_context(base_url=front)
            page = context.new_page()
            page.goto(f"{PREFIX}/run/{TRAINED}/overview")
            expect(page.get_by_role("heading", name="Where the step time went")).to_be_visible()
            context.close()
    assert wrong == []


def _drag_until(page, address):
    """Drag over the plot until the address is of a zoomed view.

    A busy browser may see press and release of one drag without the way between, which is
    a click; a person would drag again.
    """
    plot = page.locator("#timeline-graph .nsewdrag").first
    for _ in range(DRAGS):
        box = plot.bounding_box()
        page.mouse.move(box["x"] + 200, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 60, steps=10)
        page.mouse.up()
        with suppress(PlaywrightTimeoutError):
            page.wait_for_url(address, timeout=10_000)
            return
    pytest.fail(f"{DRAGS} drags did not zoom")


def test_a_zoom_is_an_address(page):
    """Fails when a zoomed view is lost by a reload, by a shared link or by the back button."""
    _open_timeline(page, "?step=1")
    whole = page.locator("figcaption").inner_text()
    _wait_until_listening(page, "timeline-graph")
    _drag_until(page, re.compile(r"\?step=1&t0=\d+&t1=\d+$"))
    expect(page.locator("figcaption")).not_to_have_text(whole)
    zoomed, address = page.locator("figcaption").inner_text(), page.url
    page.reload()
    expect(page.locator("figcaption")).to_have_text(zoomed)
    assert page.url == address
    page.go_back()
    expect(page.locator("figcaption")).to_have_text(whole)
    assert page.url.endswith("?step=1")


def test_the_critical_path_is_an_address(page):
    """Fails when the path is not drawn, or lost by a reload, by a shared link or by going back."""
    _open_timeline(page, "?step=1")
    caption, switch = page.locator("#timeline-path-caption"), page.locator("#timeline-path")
    switch.click()
    expect(caption).to_contain_text(
        re.compile(r"Critical path: \d+ % .* of it\. Its [\d,]+ pieces")
    )
    page.wait_for_url(re.compile(r"\?step=1&path=1$"))
    drawn, words = _path_bars(page), caption.inner_text()
    assert len(drawn) == _number(r"Its ([\d,]+) pieces", words)
    unit_ms = 1 if " ms, from" in words else 1000
    assert sum(drawn) == pytest.approx(_number(r"sum to ([\d.]+)", words) * unit_ms, rel=0.01)
    _point_at_widest_piece(page)
    expect(page.locator("#timeline-graph .hovertext")).to_contain_text(OUTLINES)
    page.reload()
    expect(caption).to_have_text(words)
    expect(switch).to_be_checked()
    assert _path_bars(page) == drawn
    page.get_by_role("button", name="Next").click()
    page.wait_for_url(re.compile(r"\?step=2&path=1$"))
    expect(caption).not_to_have_text(words)
    page.go_back()
    expect(caption).to_have_text(words)
    page.go_back()
    expect(caption).to_have_count(0)
    expect(switch).not_to_be_checked()
    assert page.url.endswith("?step=1")


def test_a_step_without_a_path_says_why(page):
    """Fails when the switch does nothing for a step that is not analysed, and gives no reason."""
    _open_timeline(page, "?step=0")
    _wait_until_listening(page, "timeline-graph")
    switch = page.locator("#timeline-path")
    expect(switch).to_be_disabled()
    switch.hover(force=True)
    expect(page.get_by_role("tooltip")).to_contain_text("Step 0 is not among the analysed steps")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("heading", name="Step 1")).to_be_visible()
    expect(switch).to_be_enabled()


def test_the_mesh_has_a_cell_for_every_rank_and_step(page):
    """Fails when ranks or steps are missing in the heatmap, or the metric cannot be changed."""
    page.goto(f"/run/{TRAINED}/mesh")
    expect(page.locator("#rank-step-graph .hm image")).to_have_count(1)
    (matrix,) = figure_data(page, "rank-step-graph")
    assert matrix["cells"] == 4 * 3
    assert [trace["cells"] for trace in figure_data(page, "mesh-graph")] == [4]
    expect(page.locator("figcaption").last).to_contain_text(f"Slowest is rank {SLOW_RANK}")
    page.get_by_text("Waiting", exact=True).click()
    expect(page.get_by_text("waiting for other ranks, share of the step")).to_be_visible()
    assert page.url.endswith("?metric=wait")


def test_nothing_offers_to_leave_this_machine(page):
    """Fails when a chart offers to send itself to a cloud, or links to its vendor."""
    _open_timeline(page)
    page.locator("#timeline-graph .nsewdrag").first.hover(force=True)
    titles = page.locator("#timeline-graph .modebar-btn").evaluate_all(
        "buttons => buttons.map(b => (b.dataset.title || b.title || '').toLowerCase())"
    )
    assert any("zoom" in title for title in titles)
    assert not [
        t for t in titles if any(word in t for word in ("share", "cloud", "plotly", "edit"))
    ]


def test_hostile_addresses_find_nothing(page):
    """Fails when a crafted run id reaches a file, or an absent run is not explained."""
    for run_id in ("..%2f..%2fetc%2fpasswd", "%2e%2e", "nope", "a%00"):
        assert page.request.get(f"/run/{run_id}/overview").status == 404
        assert page.request.get(f"/api/v1/runs/{run_id}/overview.json").status == 404
    page.goto("/")
    page.evaluate("history.pushState({}, '', '/run/nope/overview')")
    page.evaluate("window.dispatchEvent(new PopStateEvent('popstate'))")
    expect(page.get_by_text("there is no such run")).to_be_visible()


def test_a_job_of_another_tool(page, imported_run):
    """Fails when an imported production job cannot be browsed like a run of our own."""
    page.goto(f"/run/{imported_run}/overview")
    expect(page.locator(".ms-fact").first).to_have_text("TP1 PP4 DP2")
    expect(page.get_by_text("from ndtimeline")).to_be_visible()
    page.locator(".ms-tab", has_text="Findings").click()
    expect(page.locator(".ms-finding").first).to_contain_text("tage 3")
    page.get_by_role("link", name="Timeline", exact=True).click()
    expect(page.locator("#timeline-graph .ytick")).to_have_count(8)
    page.get_by_role("link", name="Mesh", exact=True).click()
    expect(page.locator("#rank-step-graph .hm image")).to_have_count(1)
    (matrix,) = figure_data(page, "rank-step-graph")
    assert matrix["cells"] == 8 * 32


def test_many_slices_come_as_a_picture(page, profiled_run):
    """Fails when a step of thousands of kernels is not drawn, or a zoom shows no kernels."""
    page.goto(f"/run/{profiled_run}/timeline?step=9")
    expect(page.locator("#timeline-graph image")).to_have_count(1)
    expect(page.locator("figcaption")).to_contain_text("drawn as a picture")
    size = page.evaluate(
        """async url => {
            const image = new Image();
            image.src = url;
            await image.decode();
            return [image.naturalWidth, image.naturalHeight];
        }""",
        f"/api/v1/runs/{profiled_run}/tile.png?step=9&w=640",
    )
    assert size == [640, 4 * 8]
    page.goto(f"/run/{profiled_run}/timeline?step=9&path=1")
    expect(page.locator("#timeline-path-caption")).to_contain_text("pieces sum to")
    expect(page.locator("#timeline-graph image")).to_have_count(1)
    assert _path_bars(page)
    page.goto(f"/run/{profiled_run}/timeline?step=9&t0=0&t1=9000000")
    expect(page.locator("#timeline-graph .bars .point").first).to_be_attached()
    expect(page.locator("#timeline-graph image")).to_have_count(0)


def test_communication_and_links_are_pages(page):
    """Fails when bandwidth, pairs or ports of a recorded run are not drawn, or the twin has other numbers."""
    page.goto(f"/run/{TRAINED}/overview")
    page.get_by_role("link", name="Communication", exact=True).click()
    expect(page.get_by_role("heading", name="How the ranks communicate")).to_be_visible()
    expect(page.locator("#bandwidth-graph .point").first).to_be_attached()
    expect(page.locator("#pairs-graph .hm image")).to_have_count(1)
    (matrix,) = figure_data(page, "pairs-graph")
    assert matrix["cells"] == 4 * 4
    twin = page.request.get(page.locator("#json-link").get_attribute("href")).json()
    assert {row["axis"] for row in twin["overlap"]} >= {"pp", "dp"}
    overlap = page.locator(".ms-card", has_text="Overlap with compute")
    expect(overlap.locator("tbody tr")).to_have_count(len(twin["overlap"]))
    page.get_by_role("link", name="Links", exact=True).click()
    expect(page.get_by_role("heading", name="How full the links are")).to_be_visible()
    links = page.request.get(page.locator("#json-link").get_attribute("href")).json()
    if links["unknown"]:
        expect(page.locator(".ms-empty")).to_contain_text("Use of links unknown")
    else:
        expect(page.locator("#port-graph-0 .plot-container")).to_be_visible()


def test_a_bar_of_memory_opens_the_terms_of_its_stage(page, piped_run):
    """Fails when a stage's terms cannot be reached from its bar, or the balance never arrives."""
    page.goto(f"/run/{piped_run}/memory")
    expect(page.get_by_role("heading", name="What the stages hold")).to_be_visible()
    expect(page.locator("#memory-balance")).to_contain_text("No layer split was searched")
    bar = page.locator("#memory-graph .bars .point path").nth(2)
    expect(bar).to_be_attached()
    _wait_until_listening(page, "memory-graph", "plotly_click")
    bar.scroll_into_view_if_needed()
    box = bar.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator("#memory-terms-2")).to_have_attribute("open", "")
    expect(page.locator("#memory-terms-2")).to_contain_text("Stage 2: 41 GiB")


def test_numbers_of_the_run_list_sort_as_numbers(page, piped_run, profiled_run):
    """Fails when 1.09 s stands before 19.9 ms because their texts are sorted."""
    page.goto("/")
    rows = page.locator("#runs-grid .ag-center-cols-container .ag-row")
    expect(rows.first).to_be_visible()
    expect(page.locator(".ms-row-pending")).to_have_count(0)
    page.get_by_text("Step time", exact=True).click()
    order = """() => [...document.querySelectorAll('#runs-grid .ag-row')]
        .sort((a, b) => a.getAttribute('row-index') - b.getAttribute('row-index'))
        .map(row => row.querySelector('[col-id=step_time_ns]').textContent)
        .filter(text => / (s|ms|µs|ns)$/.test(text))"""
    units = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1.0}
    times = [float(text.split()[0]) * units[text.split()[1]] for text in page.evaluate(order)]
    assert len(times) >= 2
    assert times == sorted(times)


def test_a_server_that_is_gone_is_reported_and_comes_back(browser, address):
    """Fails when the address changes under an old page without a word, or the page stays old."""
    context = browser.new_context(base_url=address)
    page = context.new_page()
    page.goto(f"/run/{TRAINED}/overview")
    expect(page.locator("#waterfall-graph")).to_be_visible()
    context.set_offline(True)
    page.get_by_role("link", name="Mesh", exact=True).click()
    expect(page.locator("#ms-gone")).to_be_visible()
    context.set_offline(False)
    expect(page.locator("#rank-step-graph")).to_be_visible()
    expect(page.locator("#ms-gone")).to_have_count(0)
    context.close()


def test_a_repair_is_replayed_and_linked(page):
    """Fails when a repair chosen on the page is not replayed, or its link opens another view."""
    page.goto(f"/run/{TRAINED}/stragglers")
    expect(page.get_by_role("heading", name="what would fixing it return")).to_be_visible()
    suspects = page.locator(".ms-table").first
    expect(suspects).to_contain_text(f"Rank {SLOW_RANK}")
    suspects.get_by_role("link", name="Replay without it").first.click()
    expect(page).to_have_url(re.compile(rf"\?fix=rank%3D{SLOW_RANK}$"))
    numbers = page.locator(".ms-key-value")
    expect(numbers).to_have_count(3)
    now, then = (_number(r"([\d.]+)", numbers.nth(at).inner_text()) for at in (0, 1))
    assert then < now
    for name in ("recorded", "repaired"):
        expect(page.locator(f"#whatif-{name}-graph .bars .point").first).to_be_attached()
    gain = numbers.nth(2).inner_text()
    page.reload()
    expect(numbers.nth(2)).to_have_text(gain)
    page.get_by_role("textbox", name="Compute faster by").fill("2x")
    page.get_by_role("button", name="Replay").click()
    expect(page).to_have_url(re.compile(r"set=compute%3D2x$"))
    expect(page.locator(".ms-command")).to_contain_text("--set compute=2x")
    page.get_by_role("button", name="Clear").click()
    expect(numbers).to_have_count(0)
    page.go_back()
    expect(page.locator(".ms-command")).to_contain_text("--set compute=2x")


def test_a_hang_names_who_is_missing(page, hung_run):
    """Fails when the page of a hang does not mark the culprit, or its table cannot be saved."""
    page.goto(f"/run/{hung_run}/hang")
    expect(page.get_by_role("heading", name="Which rank hangs")).to_be_visible()
    marked = page.locator(".ms-table .ms-marked")
    expect(marked).to_have_count(1)
    expect(marked).to_contain_text(f"rank {HUNG_RANK}")
    expect(marked).to_contain_text("did not arrive")
    with page.expect_download() as saved:
        page.get_by_role("link", name="CSV").first.click()
    assert saved.value.suggested_filename == "hang-ranks.csv"
    page.get_by_role("link", name="See the timeline").click()
    expect(page.locator(".ms-notice")).to_contain_text("The capture broke off in step")
    page.goto(f"/run/{TRAINED}/hang")
    expect(page.locator(".ms-empty")).to_have_text(
        "No rank hung: every captured rank ended in order."
    )


def test_keys_move_the_timeline(page):
    """Fails when a key does not zoom, move or step, moves out of the step, or acts while somebody types."""
    _open_timeline(page, "?step=2")
    _wait_until_listening(page, "timeline-graph")
    page.keyboard.press("w")
    page.wait_for_url(re.compile(r"t0=\d+&t1=\d+"))
    t0, t1 = (int(_number(rf"{name}=(\d+)", page.url)) for name in ("t0", "t1"))
    for _ in range(3):
        page.keyboard.press("a")
    page.wait_for_url(re.compile(r"t0=0&"))
    page.wait_for_function(
        "() => document.querySelector('#timeline-graph .js-plotly-plot')?.layout.xaxis.range[0] === 0"
    )
    assert abs(int(_number(r"t1=(\d+)", page.url)) - (t1 - t0)) <= 2
    # The last of the keys may still be on its way, and would be answered after the next one.
    page.wait_for_load_state("networkidle")
    page.keyboard.press("f")
    expect(page).to_have_url(re.compile(r"\?step=2$"))
    page.keyboard.press("]")
    expect(page).to_have_url(re.compile(r"\?step=3$"))
    page.keyboard.press("[")
    expect(page).to_have_url(re.compile(r"\?step=2$"))
    page.keyboard.press("?")
    expect(page.locator("#ms-keys-help")).to_contain_text("zoom in, out")
    page.keyboard.press("?")
    expect(page.locator("#ms-keys-help")).to_have_count(0)
    page.keyboard.press("/")
    expect(page.locator("#timeline-rank")).to_be_focused()
    page.keyboard.type("w")
    expect(page.locator("#timeline-rank")).to_have_value("w")
    expect(page).to_have_url(re.compile(r"\?step=2$"))


def test_a_key_while_the_timeline_is_drawn_counts(page):
    """Fails when a step asked for while the figure is still on its way is forgotten."""
    page.add_init_script(SLOW_ANSWERS)
    _open_timeline(page, "?step=2&t0=0&t1=1000000")
    _wait_until_listening(page, "timeline-graph")
    page.keyboard.press("f")
    expect(page).to_have_url(re.compile(r"\?step=2$"))
    page.keyboard.press("]")
    expect(page).to_have_url(re.compile(r"\?step=3$"))
    expect(page.get_by_role("heading", name="Step 3")).to_be_visible()


def test_a_key_while_another_is_drawn_counts(page):
    """Fails when a key that comes while the figure is still on its way changes the address alone."""
    page.add_init_script(SLOW_ANSWERS)
    _open_timeline(page, "?step=2")
    _wait_until_listening(page, "timeline-graph")
    page.wait_for_load_state("networkidle")
    for _ in range(2):
        page.keyboard.press("w")
        page.wait_for_timeout(400)
    page.wait_for_function(
        """() => {
            const query = new URLSearchParams(window.location.search);
            const drawn = document.querySelector('#timeline-graph .js-plotly-plot')?.layout;
            const [t0, t1] = ['t0', 't1'].map(name => query.get(name) / 1e6);
            return t0 && (t1 - t0) / drawn.meta.length_ms < 0.3 && drawn.xaxis.range[0] === t0;
        }"""
    )


def _plot(page) -> dict[str, float]:
    """Return where the plot of the timeline lies on the page, once it can be asked."""
    page.wait_for_function(
        "() => document.querySelector('#timeline-graph .js-plotly-plot')?._fullLayout?.xaxis?.p2d"
    )
    return page.locator("#timeline-graph .nsewdrag").first.bounding_box()


def test_a_click_tells_what_it_is_and_leads_on(page):
    """Fails when a click on a rank tells of another, or its row cannot be kept in sight."""
    _open_timeline(page, "?step=2")
    _wait_until_listening(page, "timeline-graph")
    plot = _plot(page)
    page.mouse.click(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] * 5 / 8)
    panel = page.locator("#timeline-instant")
    expect(panel).to_contain_text("rank 2")
    expect(panel).to_contain_text("of the step.")
    pin = panel.get_by_role("link", name="Pin rank 2 to the top")
    expect(pin).to_have_attribute("href", re.compile(r"\?step=2&place=2-\d+&pin=2$"))
    pin.click()
    expect(page).to_have_url(re.compile(r"\?step=2&place=2-\d+&pin=2$"))
    expect(page.locator("#timeline-graph .ytick text").first).to_contain_text("rank 2")
    reported = page.request.get(f"/api/v1/runs/{TRAINED}/timeline/at.json?step=2&pin=2&row=0&at=1")
    assert reported.json()["rank"] == 2
    page.mouse.click(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] / 8)
    panel.get_by_role("link", name="Unpin rank 2").click()
    expect(page).to_have_url(re.compile(r"\?step=2&place=2-\d+$"))


def _longest_wait(page) -> tuple[int, int, dict]:
    """Return row and middle of the longest wait of the rank before the slow one, and the twin of its step."""
    twin = page.request.get(f"/api/v1/runs/{TRAINED}/timeline.json?step=2").json()
    waits = [
        one
        for one in twin["slices"]
        if "DP communication" in one["category"] and one["rank"] == SLOW_RANK - 1
    ]
    longest = max(waits, key=lambda one: one["end_ns"] - one["start_ns"])
    row = twin["ranks"].index(SLOW_RANK - 1)
    return row, (longest["start_ns"] + longest["end_ns"]) // 2, twin


def _click_at(page, row: int, at: int, twin: dict) -> None:
    plot = _plot(page)
    x = plot["x"] + plot["width"] * at / twin["length_ns"]
    page.mouse.click(x, plot["y"] + plot["height"] * (row + 0.5) / len(twin["ranks"]))


def test_a_wait_leads_to_the_rank_that_came_last(page):
    """Fails when a visitor sees that a rank waits, and not for whom."""
    row, at, twin = _longest_wait(page)
    reported = page.request.get(
        f"/api/v1/runs/{TRAINED}/timeline/at.json?step=2&row={row}&at={at}"
    ).json()
    assert reported["operation"]["waited_for"] == SLOW_RANK
    _open_timeline(page, "?step=2")
    _wait_until_listening(page, "timeline-graph")
    _click_at(page, row, at, twin)
    page.locator("#timeline-instant").get_by_role(
        "link", name=f"Show rank {SLOW_RANK} and its groups"
    ).click()
    expect(page).to_have_url(re.compile(rf"rank={SLOW_RANK}(&|$)"))


ARROW = """() => {
    const shown = document.querySelector('#timeline-graph .js-plotly-plot');
    const arrow = (shown?._fullData || []).find(trace => trace.name === 'wait');
    return arrow && {x: Array.from(arrow.x), y: Array.from(arrow.y),
        drawn: shown.querySelectorAll('.scatterlayer .point').length,
        labels: arrow.y.map(row => shown.layout.yaxis.ticktext[row])};
}"""


def test_a_clicked_wait_has_an_arrow_that_is_an_address(page):
    """Fails when a wait shows no arrow, one from another rank, or a link or another step has lost or kept it."""
    row, at, twin = _longest_wait(page)
    _open_timeline(page, "?step=2")
    _wait_until_listening(page, "timeline-graph")
    assert page.evaluate(ARROW) is None
    _click_at(page, row, at, twin)
    expect(page).to_have_url(re.compile(rf"\?step=2&place={SLOW_RANK - 1}-\d+$"))
    note = page.locator("#timeline-arrow")
    expect(note).to_have_text(
        f"Arrow: rank {SLOW_RANK} came last, and rank {SLOW_RANK - 1} waited for it."
    )
    page.wait_for_function(ARROW)
    arrow = page.evaluate(ARROW)
    assert f"rank {SLOW_RANK}" in arrow["labels"][0]
    assert f"rank {SLOW_RANK - 1}" in arrow["labels"][1]
    assert arrow["drawn"] == 4, "two ends of the line and of its edge"
    assert arrow["x"][1] * 1e6 > at, "the wait ends after its middle"
    page.reload()
    expect(page.locator("#timeline-instant")).to_contain_text(f"Rank {SLOW_RANK} came last.")
    page.wait_for_function(ARROW)
    assert page.evaluate(ARROW) == arrow
    page.keyboard.press("]")
    expect(page).to_have_url(re.compile(r"\?step=3$"))
    expect(note).to_have_count(0)
    expect(page.locator("#timeline-instant")).to_be_empty()


def _shown_ranks(page, ranks: list[int]) -> None:
    """Wait until the figure has just these rows."""
    page.wait_for_function(
        """ranks => JSON.stringify(document.querySelector('#timeline-graph .js-plotly-plot')
            ?.layout?.meta?.ranks) === JSON.stringify(ranks)""",
        arg=ranks,
    )


def test_fewer_ranks_are_an_address(page):
    """Fails when rows cannot be chosen by a key or by the pointer, got back, or are lost by a reload."""
    ranks = page.request.get(f"/api/v1/runs/{TRAINED}/timeline.json?step=2").json()["ranks"]
    _open_timeline(page, "?step=2")
    _wait_until_listening(page, "timeline-graph")
    plot = _plot(page)
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] * 7 / 8)
    page.keyboard.press("e")
    expect(page).to_have_url(re.compile(r"\?step=2&rows=2-3$"))
    _shown_ranks(page, ranks[2:])
    expect(page.locator("figcaption")).to_contain_text("Shown: 2 of 4 rows.")
    page.reload()
    _shown_ranks(page, ranks[2:])
    _plot(page)
    page.keyboard.press("k")
    expect(page).to_have_url(re.compile(r"\?step=2&rows=1-2$"))
    _shown_ranks(page, ranks[1:3])
    page.keyboard.press("q")
    expect(page).to_have_url(re.compile(r"\?step=2$"))
    _shown_ranks(page, ranks)
    plot = _plot(page)
    name = plot["x"] - 30
    page.mouse.move(name, plot["y"] + plot["height"] / 8)
    page.mouse.down()
    page.mouse.move(name, plot["y"] + plot["height"] * 5 / 8, steps=5)
    expect(page.locator("#ms-band")).to_have_count(1)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"\?step=2&rows=0-2$"))
    _shown_ranks(page, ranks[:3])
    expect(page.locator("#ms-band")).to_have_count(0)
    page.keyboard.press("f")
    expect(page).to_have_url(re.compile(r"\?step=2$"))
    _shown_ranks(page, ranks)


def test_a_wheel_zooms_at_the_pointer(page):
    """Fails when it moves what the pointer is at, or a wheel alone does not scroll the page."""
    _open_timeline(page, "?step=2")
    _wait_until_listening(page, "timeline-graph")
    plot = _plot(page)
    length = page.request.get(f"/api/v1/runs/{TRAINED}/timeline.json?step=2").json()["length_ns"]
    page.mouse.move(plot["x"] + plot["width"] / 4, plot["y"] + plot["height"] / 2)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_url(re.compile(r"t0=\d+&t1=\d+"))
    t0, t1 = (int(_number(rf"{name}=(\d+)", page.url)) for name in ("t0", "t1"))
    assert (length / 4 - t0) / (t1 - t0) == pytest.approx(0.25, abs=0.01)
    assert t1 - t0 == pytest.approx(length / 1.25, rel=0.01)


def test_a_picture_names_what_the_pointer_is_at(page, profiled_run):
    """Fails when a large step is a picture that says nothing."""
    page.goto(f"/run/{profiled_run}/timeline?step=9")
    expect(page.locator("#timeline-graph image")).to_have_count(1)
    plot = _plot(page)
    page.mouse.move(plot["x"] + plot["width"] * 0.4, plot["y"] + plot["height"] / 8)
    page.mouse.move(plot["x"] + plot["width"] * 0.5, plot["y"] + plot["height"] / 8)
    expect(page.locator("#ms-tip")).to_contain_text("rank 0")
    expect(page.locator("#ms-tip")).to_contain_text("of the step.")
    page.mouse.move(5, 5)
    expect(page.locator("#ms-tip")).to_have_count(0)


def test_the_legend_leaves_out_and_brings_back(page):
    """Fails when a class cannot be left out of the figure, or cannot be had back."""
    _open_timeline(page, "?step=2")
    legend = page.locator(".ms-legend")
    before = {trace["name"] for trace in figure_data(page, "timeline-graph")}
    assert "forward" in before
    legend.get_by_role("link", name="forward").click()
    expect(page).to_have_url(re.compile(r"\?step=2&hide=forward$"))
    page.wait_for_function(
        """() => !document.querySelector('#timeline-graph .js-plotly-plot')._fullData
            .some(trace => trace.name === 'forward')"""
    )
    expect(legend.locator(".ms-left-out")).to_have_text("forward")
    legend.get_by_role("link", name="forward").click()
    expect(page).to_have_url(re.compile(r"\?step=2$"))
    expect(legend.locator(".ms-left-out")).to_have_count(0)
