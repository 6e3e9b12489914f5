"""Both themes: who chooses, and whether everybody can read them."""

import pytest
from playwright.sync_api import expect
from tests.browser.conftest import SLOW_RANK, TRAINED, watched

from meshscope.dashboard.pages.page_list import PAGES

pytestmark = [pytest.mark.browser, pytest.mark.slow]
DARK_INK, LIGHT_INK = "rgb(227, 232, 237)", "rgb(31, 41, 51)"
VIEWS = {"timeline": "?path=1", "stragglers": f"?fix=rank%3D{SLOW_RANK}"}
"""What to show of a page beyond its default."""
READY = {"memory": "#memory-balance table, #memory-balance .ms-empty"}
"""What a page shows at last, where that comes after the page."""


def _ink(page, selector: str, name: str = "color") -> str:
    return page.locator(selector).first.evaluate("(one, name) => getComputedStyle(one)[name]", name)


def _grave(page) -> list[str]:
    """Return what axe-core calls serious or critical on a page."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-core")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{page.url}: {one['id']}: {node['target']} {node['failureSummary']}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def test_the_theme_is_that_of_the_system_until_somebody_chooses(browser, address):
    """Fails when a page ignores the system's theme, or a choice is lost by a reload or another page."""
    with watched(browser, address, color_scheme="dark") as page:
        page.goto(f"/run/{TRAINED}/overview")
        expect(page.locator("#waterfall-graph .xtick text").first).to_be_visible()
        assert _ink(page, "body") == DARK_INK
        # Figures come for light paper; on a dark screen their words must change too.
        assert _ink(page, "#waterfall-graph .xtick text", "fill") == DARK_INK
        page.emulate_media(color_scheme="light")
        expect(page.locator("body")).to_have_css("color", LIGHT_INK)
        expect(page.locator(".ms-card").first).to_have_css("background-color", "rgb(255, 255, 255)")
        choice = page.locator("#theme-choice")
        expect(choice).to_have_text("Theme: system")
        choice.click()
        expect(choice).to_have_text("Theme: light")
        choice.click()
        expect(choice).to_have_text("Theme: dark")
        expect(page.locator("body")).to_have_css("color", DARK_INK)
        page.reload()
        expect(page.locator("body")).to_have_css("color", DARK_INK)
        page.get_by_role("link", name="meshscope").click()
        expect(page.locator("#runs-grid .ag-row").first).to_be_visible()
        assert _ink(page, "#runs-grid .ag-header-cell") == DARK_INK
        expect(choice).to_have_text("Theme: dark")
        choice.click()
        expect(choice).to_have_text("Theme: system")
        expect(page.locator("body")).to_have_css("color", LIGHT_INK)


def test_a_dark_page_is_printed_on_light_paper(browser, address):
    """Fails when a page in the dark theme is printed as light words on white, or as dark paper."""
    with watched(browser, address, color_scheme="dark") as page:
        page.goto(f"/run/{TRAINED}/findings")
        expect(page.locator(".ms-finding").first).to_be_visible()
        page.emulate_media(media="print")
        assert _ink(page, ".ms-claim") == LIGHT_INK
        assert _ink(page, ".ms-finding", "backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_can_be_read(browser, address, hung_run, scheme):
    """Fails when axe-core finds a serious or critical defect on a page: contrast, names, roles."""
    pages = [f"/run/{TRAINED}/{name}{VIEWS.get(name, '')}" for name in PAGES]
    grave = []
    with watched(browser, address, color_scheme=scheme) as page:
        for place in [*pages, f"/run/{hung_run}/hang", f"/run/{hung_run}/findings", "/"]:
            page.goto(place)
            expect(page.locator("#page > div")).to_be_visible()
            expect(page.locator("#page[data-dash-is-loading]")).to_have_count(0)
            ready = READY.get(place.rpartition("/")[2], ".ms-main > :not(#ignored)")
            expect(page.locator(ready).first).to_be_visible()
            grave += _grave(page)
    assert not grave, "\n".join(grave)


def test_the_facts_of_a_run_take_no_line_of_their_own(page):
    """Fails when the header or the tabs of a page wrap to a second line in a window of 1,360 pixels."""
    page.goto(f"/run/{TRAINED}/overview")
    expect(page.locator(".ms-fact").first).to_be_visible()
    for bar, most_px in ((".ms-header", 50), (".ms-nav", 50)):
        assert page.locator(bar).bounding_box()["height"] <= most_px


def test_no_choice_is_cut_on_a_narrow_page(page):
    """Fails when the last of the choices of the mesh lies outside its box, where nobody can see or press it."""
    page.set_viewport_size({"width": 480, "height": 900})
    page.goto(f"/run/{TRAINED}/mesh")
    choices = page.locator("#mesh-metric")
    expect(choices).to_be_visible()
    assert choices.evaluate("box => box.scrollWidth - box.clientWidth") <= 2
    choices.get_by_text("Waiting").click()
    page.wait_for_url("**metric=wait**")
