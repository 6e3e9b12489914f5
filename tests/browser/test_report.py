"""The report that is mailed, in the browser of whoever gets it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshscope.cli import app

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(recorded_run, tmp_path_factory):
    """Return the report of the recorded run."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    words = ["report", str(recorded_run), "-o", str(out)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    return out


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_opens_without_a_network(browser, report, scheme):
    """A reader without access to the training site would see half a page, or a broken one."""
    context = browser.new_context(color_scheme=scheme, offline=True)
    page = context.new_page()
    seen: list[str] = []
    page.on("console", lambda message: seen.append(message.text))
    page.on("request", lambda request: seen.append(request.url))
    page.goto(report.as_uri())
    assert seen == [report.as_uri()]
    assert page.locator("h1").count() == 1
    pictures = page.locator("figure svg[role=img]")
    assert pictures.count() >= 3
    assert all(one.bounding_box()["height"] > 20 for one in pictures.all())
    summary = page.locator("summary").first
    summary.click()
    assert page.locator("figure table").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_the_report_prints(browser, report):
    """A report on paper would be empty, or cut at the first page."""
    page = browser.new_page()
    page.goto(report.as_uri())
    paper = page.pdf(format="A4")
    page.close()
    assert paper.startswith(b"%PDF")
    assert paper.count(b"/Type /Page\n") + paper.count(b"/Type /Page ") >= 2


def test_a_name_without_a_form_is_refused(recorded_run, tmp_path):
    """A report would be written in a form that nobody asked for."""
    out = Path(tmp_path, "report.txt")
    done = CliRunner().invoke(app, ["report", str(recorded_run), "-o", str(out)])
    assert done.exit_code != 0
    assert not out.exists()
