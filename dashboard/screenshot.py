"""Pictures of the pages of one run, for the documentation.

``python -m meshscope.dashboard.screenshot RUNS_DIR OUT_DIR [RUN_ID]`` writes
runs, overview, findings, stragglers, hang, timeline, mesh, communication, links, live and trust as PNG
files. Without a run id the newest readable run is shown. Needs Playwright and a Chromium of the system.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from werkzeug.serving import WSGIRequestHandler, make_server

from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.message import message

from .browser import launch
from .runs.store import RunStore
from .serving.app import create_app
from .serving.security import Access

if TYPE_CHECKING:
    from http.server import HTTPServer

    from playwright.sync_api import Page

# Pages grow to their content; a low window leaves no empty space below a short one.
WIDTH_PX, HEIGHT_PX = 1360, 480
# What must be on a page before its picture is taken.
_READY = {
    "overview": "#waterfall-graph .plot-container",
    "findings": ".ms-main .ms-card, .ms-main .ms-empty",
    "stragglers": "#stragglers-result .ms-card, .ms-main .ms-empty",
    "hang": ".ms-main .ms-card, .ms-main .ms-empty",
    "timeline": "#timeline-graph .plot-container",
    "mesh": "#rank-step-graph .plot-container",
    "communication": ".ms-main .ms-card, .ms-main .ms-empty",
    "links": ".ms-main .ms-card, .ms-main .ms-empty",
    "live": "#live-graph .plot-container",
    "trust": ".ms-main .ms-card",
}
_NOTHING_TO_DRAW = ".ms-main:not(:has(.dash-graph)) .ms-empty"
"""What a page without a figure says in its place, such as that no rank has a peer."""
_QUERIES = {"timeline": "?path=1", "stragglers": "?fix=stragglers"}
"""What to show of a page beyond its default."""
_ONLY_WITH = {"hang": ".ms-main .ms-finding", "links": ".ms-main .js-plotly-plot"}
"""Pages of which a run without this shows nothing: they get no picture then."""
_SETTLE_MS = 400
"""For transitions, and figures that are drawn once their data came."""
_PATIENCE_MS = 180_000
"""The first page of a large run waits for its analysis, on CI beside other jobs."""


class _Silent(WSGIRequestHandler):
    """Answers without a log line for every request."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Leave requests out of the log; errors stay in it."""


@contextmanager
def served(
    runs_dir: Path,
    access: Access | None = None,
    are_gone: Callable[[Path], bool] | None = None,
    arm: Callable[[Path], str] | None = None,
) -> Iterator[str]:
    """Serve a folder of runs on a free port of this machine; yield its address."""
    app = create_app(runs_dir, access=access, are_gone=are_gone, arm=arm).server
    with answering(make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Silent)) as url:
        yield url


@contextmanager
def answering(server: HTTPServer) -> Iterator[str]:
    """Let a server answer in a thread; yield its address."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def take(runs_dir: Path, out_dir: Path, run_id: str | None = None) -> list[Path]:
    """Write one picture per page that has something to show, and return their paths.

    Raises:
        ConfigError: There is no readable run, or no browser.
    """
    from playwright.sync_api import sync_playwright

    shown = run_id or _newest(runs_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    with served(runs_dir) as address, sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": WIDTH_PX, "height": HEIGHT_PX})
        # The first view of a run waits for its analysis.
        page.set_default_timeout(_PATIENCE_MS)
        paths = []
        for name, ready in _READY.items():
            _open(page, f"{address}/run/{shown}/{name}{_QUERIES.get(name, '')}", ready)
            if name not in _ONLY_WITH or page.locator(_ONLY_WITH[name]).count():
                paths.append(_picture(page, out_dir / f"{name}.png"))
        # Last: by now the run that is shown has been analysed.
        _open(page, f"{address}/", "#runs-grid .ag-row")
        paths.append(_picture(page, out_dir / "runs.png"))
        browser.close()
    return paths


def _open(page: Page, address: str, ready: str) -> None:
    page.goto(address)
    page.locator(f"{ready}, {_NOTHING_TO_DRAW}").first.wait_for()
    page.wait_for_timeout(_SETTLE_MS)


def _picture(page: Page, path: Path) -> Path:
    page.screenshot(path=path, full_page=True)
    return path


def _newest(runs_dir: Path) -> str:
    entries = RunStore(runs_dir).entries(max_new=sys.maxsize)
    ready = [entry.run_id for entry in entries if entry.state == "ready"]
    if not ready:
        raise ConfigError(message("refused.no_readable_run"), where=str(runs_dir))
    return ready[0]


def main(arguments: list[str]) -> int:
    """Take the pictures; return the exit status."""
    if len(arguments) not in (2, 3):
        sys.stderr.write(
            "usage: python -m meshscope.dashboard.screenshot RUNS_DIR OUT_DIR [RUN_ID]\n"
        )
        return 2
    runs_dir, out_dir, *run_id = arguments
    try:
        paths = take(Path(runs_dir), Path(out_dir), run_id[0] if run_id else None)
    except MeshscopeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write("".join(f"{path}\n" for path in paths))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
