"""The page of a job that really runs, up to its end and to its death."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.browser.conftest import SLOW_RANK, TRAINED, watched

from meshscope.commands.arming import arm_aside
from meshscope.commands.processes import are_gone
from meshscope.dashboard.screenshot import served

pytestmark = [pytest.mark.browser, pytest.mark.distributed, pytest.mark.slow]
RUN = "going"
START_S = 120
PATIENCE_MS = 240_000
"""A busy machine takes long for a step, and the page rests after each analysis."""
STEPS_TO_THE_END = 40
STEPS_FOR_EVER = 100_000
MOST_LOOKS = 6
"""Of a page of a job that stands still: the first ones may show the last of its steps."""


@contextmanager
def _training(runs: Path, steps: int):
    """Run a trainer of two ranks with the probe; yield its process once a rank records."""
    command = str(Path(sys.executable).with_name("meshscope"))
    watch = [command, "run", "--runs", str(runs), "--run-id", RUN, "--"]
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
    ]
    train = [
        "-m",
        "meshscope.reference_trainer",
        "--preset",
        "tiny",
        "--set",
        f"train.steps={steps}",
    ]
    fault = ["--fault", "slow_rank:rank=1,mode=sleep,delay_ms=250"]
    with subprocess.Popen(
        [*watch, *launch, *train, *fault],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as job:
        try:
            until_s = time.monotonic() + START_S
            while not list((runs / RUN).glob("rank*/ring.bin")):
                assert time.monotonic() < until_s, "no rank began to record"
                assert job.poll() is None, "the trainer ended at once"
                time.sleep(0.2)
            yield job
        finally:
            if job.poll() is None:
                _kill(job, runs)


def _kill(job: subprocess.Popen, runs: Path) -> None:
    """Kill the launchers first, so that nobody notes the end of the ranks, and then these."""
    found = subprocess.run(
        ["ps", "-e", "-o", "pid=,sess="], capture_output=True, text=True, check=True
    )
    pairs = (line.split() for line in found.stdout.splitlines())
    launchers = [int(pid) for pid, session in pairs if session == str(job.pid)]
    # Each rank has a session of its own.
    manifests = [json.loads(path.read_bytes()) for path in (runs / RUN).glob("rank*/manifest.json")]
    for pid in [*launchers, *(one["pid"] for one in manifests)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def _live_page(browser, runs: Path):
    """Yield the live page of the job, with one rank selected."""
    with (
        served(runs, are_gone=are_gone, arm=arm_aside) as address,
        watched(browser, address) as page,
    ):
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"/run/{RUN}/live?rank=1")
        yield page


def _last_step(page) -> int:
    words = page.locator(".ms-key", has_text="Last step").locator(".ms-key-value").inner_text()
    return int(words) if words.isdigit() else -1


def _wait_for_more_steps(page, last: int) -> int:
    """Return the newest step once it is beyond one that was seen."""
    until_s = time.monotonic() + PATIENCE_MS / 1000
    while (now := _last_step(page)) <= last:
        assert time.monotonic() < until_s, f"the page stays at step {last}"
        page.wait_for_timeout(500)
    return now


def _follow_elsewhere(page) -> None:
    """See that another page says that the job has gone on, and shows the same view of it; come back."""
    here = page.url
    page.goto(f"/run/{RUN}/stragglers?rank=1")
    read = page.locator("#run-facts").inner_text()
    more = "The run has recorded more"
    expect(page.locator("#news")).to_contain_text(more, timeout=PATIENCE_MS)
    page.get_by_role("link", name="Show it as it is now").click()
    expect(page.locator("#run-facts")).not_to_have_text(read)
    assert page.url.endswith("/stragglers?rank=1")
    page.goto(here)
    expect(page.locator("#live-state")).to_have_text("running")


def test_a_job_that_is_killed_is_followed_up_to_its_death(browser, tmp_path):
    """Fails when new steps are kept back, a selection is lost, or a killed job runs on for ever."""
    with _training(tmp_path, STEPS_FOR_EVER) as job, _live_page(browser, tmp_path) as page:
        state = page.locator("#live-state")
        expect(state).to_have_text("running", timeout=PATIENCE_MS)
        first = _wait_for_more_steps(page, -1)
        _wait_for_more_steps(page, first)
        expect(page.locator("#live-graph .js-line").first).to_be_attached()
        expect(page.locator(".ms-marked")).to_contain_text("rank 1, selected")
        assert page.url.endswith("/live?rank=1")
        expect(page.locator("#run-facts")).to_contain_text("running")
        _follow_elsewhere(page)
        _kill(job, tmp_path)
        expect(state).to_have_text(re.compile("broke off|job ended|crash"), timeout=PATIENCE_MS)
        expect(page.locator("#run-facts")).not_to_contain_text("running")
        expect(page.locator(".ms-marked")).to_contain_text("rank 1, selected")


def test_a_deep_trace_is_armed_once_it_is_confirmed(browser, tmp_path):
    """Fails when a trace is taken without a yes, or none after it, or the page does not say which steps."""
    with _training(tmp_path, STEPS_FOR_EVER), _live_page(browser, tmp_path) as page:
        expect(page.locator("#live-state")).to_have_text("running", timeout=PATIENCE_MS)
        page.reload()
        button, said = page.locator("#live-arm"), page.locator("#live-arm-said")
        asked = []
        page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
        button.click()
        page.wait_for_timeout(2000)
        assert "Record the next 3 steps of all ranks" in asked[0]
        expect(said).to_be_empty()
        page.once("dialog", lambda dialog: dialog.accept())
        button.click()
        expect(said).to_contain_text(
            re.compile(r"2 ranks record steps \d+ to \d+"), timeout=PATIENCE_MS
        )
        until_s = time.monotonic() + PATIENCE_MS / 1000
        while len(list((tmp_path / RUN).glob("rank*/traces/*.json.gz"))) < 2:
            assert time.monotonic() < until_s, "no trace was written"
            page.wait_for_timeout(500)


def _stop(runs: Path, rank: int) -> None:
    """Let a rank stand still; the others wait for it, and nobody ends a step any more."""
    manifests = [json.loads(path.read_bytes()) for path in (runs / RUN).glob("rank*/manifest.json")]
    os.kill(next(one["pid"] for one in manifests if one["rank"] == rank), signal.SIGSTOP)


def test_an_open_page_of_a_job_that_hangs_says_so(browser, tmp_path):
    """Fails when a page waits for new steps that never come, and its reader takes the job for running."""
    with _training(tmp_path, STEPS_FOR_EVER), _live_page(browser, tmp_path) as page:
        _wait_for_more_steps(page, -1)
        page.goto(f"/run/{RUN}/hang")
        facts, news = page.locator("#run-facts"), page.locator("#news")
        expect(facts).to_contain_text("running")
        _stop(tmp_path, 1)
        for _ in range(MOST_LOOKS):
            expect(news).to_contain_text(re.compile("recorded more|may hang"), timeout=PATIENCE_MS)
            read = facts.inner_text()
            page.get_by_role("link", name="Show it as it is now").click()
            expect(facts).not_to_have_text(read)
            if "hang" in facts.inner_text():
                break
        expect(facts).to_contain_text("hang")
        expect(page.locator(".ms-main")).to_contain_text("Rank 1 did not arrive")


@pytest.mark.sampled(keep=())
def test_a_job_that_ends_in_order_is_followed_up_to_its_end(browser, tmp_path):
    """Fails when the page of a job that ended in order goes on to call it running."""
    with _training(tmp_path, STEPS_TO_THE_END), _live_page(browser, tmp_path) as page:
        expect(page.locator("#live-state")).to_have_text("ended in order", timeout=PATIENCE_MS)
        assert _last_step(page) == STEPS_TO_THE_END - 1
        twin = page.request.get(page.locator("#json-link").get_attribute("href")).json()
        assert (twin["state"], twin["last_step"]) == ("in_order", STEPS_TO_THE_END - 1)


def test_the_score_names_the_slow_rank(page):
    """Fails when the slow rank is not the first of the ranks, or the twin has another score."""
    page.goto(f"/run/{TRAINED}/live")
    expect(page.locator("#live-state")).to_have_text("ended in order")
    first = page.locator(".ms-card", has_text="Score").locator("tbody tr").first
    expect(first).to_contain_text(f"rank {SLOW_RANK}")
    twin = page.request.get(page.locator("#json-link").get_attribute("href")).json()
    expect(first).to_contain_text(f"{twin['ranks'][0]['slowdown']:.2f} x")
