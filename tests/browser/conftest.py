"""One browser, one server and real runs for all browser tests; nothing may go wrong unseen."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.pipeline_dumps import write_dumps
from tests.unit.dashboard.conftest import write_synthetic

from meshscope.probe.schema.errors import ConfigError

SLOW_RANK = 3
TRAINED = "tiny"
HUNG_RANK = 3
_TRAINING_S = 120
_PATIENCE_MS = 30_000


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory):
    """Return a run of four ranks, PP2 x DP2, one of them slow, recorded by the probe."""
    runs = tmp_path_factory.mktemp("recorded")
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "4",
    ]
    train = ["-m", "meshscope.reference_trainer", "--preset", "tiny", "--set", "layout.dp=2"]
    fault = ["--fault", f"slow_rank:rank={SLOW_RANK},mode=sleep,delay_ms=250"]
    command = str(Path(sys.executable).with_name("meshscope"))
    watch = [command, "run", "--runs", str(runs), "--run-id", TRAINED]
    done = subprocess.run(
        [*watch, "--", *launch, *train, *fault],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=_TRAINING_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return runs / TRAINED


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory, recorded_run):
    """Return a folder with the recorded run and a file that is no trace."""
    folder = tmp_path_factory.mktemp("runs")
    shutil.copytree(recorded_run, folder / TRAINED)
    (folder / "notes.txt").write_text("not a trace\n")
    return folder


def _add(folder: Path, source: Path, run_id: str) -> str:
    """Copy a read-only folder of traces among the runs; return its run id."""
    shutil.copytree(source, folder / run_id)
    for path in [folder / run_id, *(folder / run_id).iterdir()]:
        path.chmod(0o700)
    return run_id


@pytest.fixture(scope="session")
def imported_run(runs_dir, traces_dir):
    """Add a production job of another tool, PP4 x DP2, 32 steps."""
    return _add(runs_dir, traces_dir / "straggler_analysis", "ST")


@pytest.fixture(scope="session")
def profiled_run(runs_dir, traces_dir):
    """Add kernel traces of four ranks."""
    return _add(runs_dir, traces_dir / "amd_hpctraining" / "split", "profiled")


@pytest.fixture(scope="session")
def piped_run(runs_dir, tmp_path_factory):
    """Add a pipeline with memory by stage and a heavy head."""
    dumps = tmp_path_factory.mktemp("dumps")
    write_dumps(dumps, [4] * 5, (52, 44, 41, 38, 41))
    return _add(runs_dir, dumps, "piped")


@pytest.fixture(scope="session")
def hung_run(runs_dir):
    """Add a simulated job of which one rank stands still for ever."""
    return write_synthetic(runs_dir, f"hang:rank={HUNG_RANK},first_step=2")


@pytest.fixture(scope="session")
def address(runs_dir):
    """Return the address of a dashboard of that folder, served in this process."""
    from meshscope.dashboard.screenshot import served

    with served(runs_dir) as url:
        yield url


@pytest.fixture(scope="session")
def browser():
    """Return the system Chromium, started once."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    from meshscope.dashboard.browser import launch

    with sync_api.sync_playwright() as playwright:
        try:
            chromium = launch(playwright)
        except ConfigError as error:
            pytest.skip(f"needs a browser: {error}")
        # The first view of a run waits for its analysis, which is slow on a busy machine.
        sync_api.expect.set_options(timeout=_PATIENCE_MS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, address):
    """Return a fresh page that fails its test on any error or request to another origin."""
    with watched(browser, address) as opened:
        yield opened


@contextmanager
def watched(browser, address, **options):
    """Open a page of a context with options; fail at its end if an error or foreign request was seen."""
    size = {"width": 1360, "height": 900}
    context = browser.new_context(viewport=size, base_url=address, **options)
    context.set_default_timeout(_PATIENCE_MS)
    opened, wrong = context.new_page(), []

    def note_request(request) -> None:
        target = urlsplit(request.url)
        if (
            target.scheme in ("http", "https", "ws", "wss")
            and target.netloc != urlsplit(address).netloc
        ):
            wrong.append(f"request to another origin: {request.url}")

    def note_console(message) -> None:
        if message.type == "error":
            wrong.append(f"console: {message.text}")

    opened.on("request", note_request)
    opened.on("console", note_console)
    opened.on("pageerror", lambda error: wrong.append(f"page error: {error}"))
    yield opened
    context.close()
    assert not wrong, wrong


def figure_data(page, graph_id: str) -> list[dict]:
    """Return what plotly drew of each trace: name, type, x, base, number of cells."""
    return page.evaluate(
        """id => document.querySelector(`#${id} .js-plotly-plot`)._fullData.map(
            t => ({name: t.name, type: t.type, x: Array.from(t.x || []), base: Array.from(t.base || []),
                   cells: (t.z || []).reduce((n, row) => n + row.length, 0)}))""",
        graph_id,
    )
