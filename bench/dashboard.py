"""What the dashboard costs a reader: in headless Chromium, beside its targets; asserts none.

    python bench/dashboard.py                     1,024 ranks, a folder of 10 runs, 20 s of 50 clients
    python bench/dashboard.py --huge 16384        also a run of so many ranks
    python bench/dashboard.py --ranks 64 --runs 3 --seconds 2    a first look

The server runs in a process of its own: it is started once to analyse, and measured after a
second start, with what the first one kept on disk. Times are wall times as the reader has
them. Memory is what the system says of the server's process, beside what the server itself
thinks its runs take.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from meshscope.dashboard.browser import find_chromium, launch
from meshscope.probe.schema.errors import ConfigError

SERVER = """
import sys, threading
from pathlib import Path
from meshscope.dashboard.serving import app as module
from meshscope.dashboard.serving.server import serve
stores = []
make = module.RunStore
module.RunStore = lambda *args, **named: stores.append(make(*args, **named)) or stores[-1]
def answer():
    for _ in sys.stdin:
        print(stores[0].held_bytes(), flush=True)
threading.Thread(target=answer, daemon=True).start()
serve(Path(sys.argv[1]), port=0, announce=lambda url: print(url, flush=True))
"""
JOB = ("--microbatches", "64", "--steps", "1", "--jitter", "0.02", "--no-truth")
FAULT = ("--fault", "slow_rank:rank=5,factor=1.3")
CHART = "#timeline-graph .plotly .cartesianlayer"
TABS = ("findings", "mesh", "trust", "communication", "kernels", "overview", "timeline")
REST_S = 8
"""What is made before somebody asks for it is done, and unused memory given back."""
PATIENCE_MS = 300_000
ZOOMS, CLIENTS = 12, 50
STILL_MEASURED = 503
GB, MB = 1e9, 1e6


class Server:
    """A dashboard in a process of its own."""

    def __init__(self, folder, caches):
        """Start it and wait for its address."""
        given = os.environ | {"XDG_CACHE_HOME": str(caches)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        pipes["stderr"] = subprocess.DEVNULL
        command = [sys.executable, "-c", SERVER, str(folder)]
        self.process = subprocess.Popen(command, env=given, **pipes)
        self.address = self.process.stdout.readline().strip().rstrip("/")

    def held_bytes(self):
        """Return what the server itself thinks that its runs take."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def resident_bytes(self, which="VmRSS"):
        """Return what the system says: of now, or with ``VmHWM`` the most so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(which))

    def cpu_s(self):
        """Return the CPU time so far, without that of processes of its own."""
        return self._cpu_s(11)

    def children_cpu_s(self):
        """Return the CPU time of those that have ended."""
        return self._cpu_s(13)

    def _cpu_s(self, first):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[first]) + int(fields[first + 1])) / os.sysconf("SC_CLK_TCK")

    def get(self, path):
        """Return the answer to a request, in bytes as they are sent."""
        request = urllib.request.Request(self.address + path, headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=PATIENCE_MS / 1e3) as answer:
            return answer.read()

    def has(self, path):
        """Return whether something is there; False while it is still measured."""
        try:
            self.get(path)
        except urllib.error.HTTPError as error:
            if error.code != STILL_MEASURED:
                raise
            return False
        return True


@contextmanager
def server(folder, caches):
    """Yield a server, and end it."""
    one = Server(folder, caches)
    try:
        yield one
    finally:
        one.process.terminate()
        one.process.wait()


def write_run(folder, name, layout, *more):
    """Write a synthetic job as a run."""
    command = [sys.executable, "-m", "meshscope.analyze.synthetic", "--layout", layout]
    with tempfile.TemporaryDirectory(dir=folder.parent) as out:
        whole = [*command, *JOB, *FAULT, *more, "--out", out]
        subprocess.run(whole, check=True, capture_output=True)
        next(Path(out).iterdir()).rename(folder / name)


def line(what, value, target):
    """Print one figure beside its target."""
    print(f"{what:<52} {value:>16}   {target}", flush=True)


def opened_s(page, address, ready):
    """Return how long an address takes until something is there."""
    begin = time.monotonic()
    page.goto(address, wait_until="commit")
    page.locator(ready).first.wait_for()
    return time.monotonic() - begin


@contextmanager
def browser_page():
    """Yield a page of a browser without a cache; it counts what was sent."""
    with sync_playwright() as playwright:
        browser = launch(playwright)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        yield page
        browser.close()


def sent_bytes(page):
    """Return what the page was sent, compressed as it was."""
    sizes = "performance.getEntries().map(e => e.transferSize || 0).reduce((a, b) => a + b, 0)"
    return page.evaluate(sizes)


def watched_cpu(page):
    """Return what says how much CPU time the page's main thread took so far: the same on a busy machine."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.setTimeDomain", {"timeDomain": "threadTicks"})
    session.send("Performance.enable")

    def cpu_s():
        found = session.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in found if one["name"] == "TaskDuration")

    return cpu_s


def measure_tabs(page, cpu_s):
    """Print how long a click on another tab takes."""
    times, busy = [], []
    for name in TABS:
        before, begin = cpu_s(), time.monotonic()
        page.locator("#run-tabs a", has_text=name.capitalize()).click()
        page.locator(".ms-tab-active", has_text=name.capitalize()).wait_for()
        page.locator("main").wait_for()
        times.append(time.monotonic() - begin)
        page.wait_for_load_state("networkidle")
        busy.append(cpu_s() - before)
    page.locator(CHART).wait_for()
    worst = TABS[times.index(max(times))]
    line("tab switch, median", f"{statistics.median(times):.2f} s", "<= 0.5 s")
    line(f"tab switch, longest ({worst})", f"{max(times):.2f} s", "<= 0.5 s")
    worst = TABS[busy.index(max(busy))]
    line(f"  CPU of the browser, most ({worst})", f"{max(busy):.2f} s", "")


def measure_zooms(page, cpu_s, server_cpu_s):
    """Print how long a key press takes until the picture of the new window is there."""
    times = []
    page.locator("#timeline-graph").click()
    begun, server_begun = cpu_s(), server_cpu_s()
    for at in range(ZOOMS):
        before = page.url
        begin = time.monotonic()
        key = "wd"[at % 2]
        with page.expect_response(lambda answer: "_dash-update" in answer.url):
            page.keyboard.press(key)
        page.wait_for_function("before => location.href !== before", arg=before)
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => done()))")
        times.append(1e3 * (time.monotonic() - begin))
    busy, busy_server = cpu_s() - begun, server_cpu_s() - server_begun
    times.sort()
    line("zoom, median", f"{statistics.median(times):.0f} ms", "<= 200 ms")
    line(f"zoom, longest of {ZOOMS}", f"{times[-1]:.0f} ms", "<= 400 ms")
    each = f"{1e3 * busy / ZOOMS:.0f} + {1e3 * busy_server / ZOOMS:.0f} ms"
    line("  CPU of the browser and the server, each", each, "")


def measure_clients(one, path, seconds):
    """Print what many clients at once get that ask for a page's numbers without a rest."""
    times, errors = [], []
    until = time.monotonic() + seconds

    def ask():
        while time.monotonic() < until:
            begin = time.monotonic()
            try:
                one.get(path)
            except OSError as error:
                errors.append(error)
            times.append(time.monotonic() - begin)

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times.sort()
    line(f"{CLIENTS} clients, {seconds} s: {len(times)} requests, errors", str(len(errors)), "0")
    line("  95 of 100 within", f"{times[int(0.95 * len(times))]:.2f} s", "<= 1 s")


def measure_large(one, name, ranks, other):
    """Print what a large run costs its reader after a restart; another run has the program loaded first."""
    one.get(f"/api/v1/runs/{other}/timeline.json")
    time.sleep(REST_S)
    base, base_held = one.resident_bytes(), one.held_bytes()
    before = one.cpu_s()
    with browser_page() as page:
        took = opened_s(page, f"{one.address}/run/{name}/overview", "#waterfall-graph .plotly")
        line(f"{ranks:,} ranks: first chart, empty browser cache", f"{took:.1f} s", "<= 2 s")
        line("  CPU of the server for it", f"{one.cpu_s() - before:.1f} s", "")
        line("  payload with an empty browser cache", f"{sent_bytes(page) / MB:.1f} MB", "")
        took = opened_s(page, f"{one.address}/run/{name}/overview", "#waterfall-graph .plotly")
        line("  the same with what the browser kept", f"{took:.1f} s", "<= 2 s")
        took = opened_s(page, f"{one.address}/run/{name}/timeline", CHART)
        line("timeline, first", f"{took:.1f} s", "<= 2 s")
        took = opened_s(page, f"{one.address}/run/{name}/timeline", CHART)
        line("timeline, again", f"{took:.1f} s", "<= 2 s")
        cpu_s = watched_cpu(page)
        measure_tabs(page, cpu_s)
        measure_zooms(page, cpu_s, one.cpu_s)
    time.sleep(REST_S)
    held, resident = one.held_bytes(), one.resident_bytes()
    line("server, resident", f"{resident / GB:.2f} GB", "<= 1 GB")
    grown, estimated = resident - base, held - base_held
    line("  large run, by its own estimate", f"{estimated / MB:.0f} MB", "")
    line(
        "  large run, measured", f"{grown / MB:.0f} MB {estimated / grown - 1:+.0%}", "within 20 %"
    )


def first_start(folder, caches, names):
    """Have all runs analysed, and print what that costs."""
    with server(folder, caches) as one:
        for name in names:
            begin = time.monotonic()
            one.get(f"/api/v1/runs/{name}/overview.json")
            if name == names[0]:
                line("analysis, once", f"{time.monotonic() - begin:.1f} s", "")
        most = one.resident_bytes("VmHWM")
        line("  server, most while it analyses", f"{most / GB:.2f} GB", "<= 1 GB")
        while not one.has(f"/api/v1/runs/{names[0]}/communication.json"):
            time.sleep(1)
        time.sleep(1)
        line("  CPU, with the pages that are kept", f"{one.children_cpu_s():.1f} s", "")
    with server(folder, caches) as one:
        one.get(f"/api/v1/runs/{names[-1]}/overview.json")
        before = one.cpu_s()
        one.get(f"/api/v1/runs/{names[0]}/overview.json")
        line("analysis that was kept, CPU", f"{one.cpu_s() - before:.2f} s", "")
    kept = sum(place.stat().st_size for place in (folder / names[0] / "analysis").iterdir())
    line("  kept on disk", f"{kept / MB:.2f} MB", "")


def measure_list(folder, caches):
    """Print how long the list takes after a restart."""
    with server(folder, caches) as one, browser_page() as page:
        took = opened_s(page, f"{one.address}/", "#runs-grid .ag-row")
        line(
            f"list of {len(list(folder.iterdir()))} runs after a restart", f"{took:.1f} s", "<= 2 s"
        )


def main():
    """Write the runs, and print every figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=10, help="runs of the folder, 2 or more")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--huge", type=int, help="ranks of a still larger run")
    given = parser.parse_args()
    try:
        find_chromium()
    except ConfigError as error:
        print(f"not measured: {error}")
        return
    root = Path(tempfile.mkdtemp(prefix="meshscope-bench-"))
    folder, caches = root / "runs", root / "caches"
    folder.mkdir()
    try:
        write_run(folder, "large", f"tp8,pp8,dp{max(1, given.ranks // 64)}", "--segments", "5")
        small = [f"small-{at}" for at in range(given.runs - 1)]
        for at, name in enumerate(small):
            write_run(folder, name, "tp2,pp2,dp2", "--seed", str(at))
        first_start(folder, caches, ["large", *small])
        with server(folder, caches) as one:
            measure_large(one, "large", given.ranks, small[0])
            measure_clients(one, f"/api/v1/runs/{small[0]}/overview.json", given.seconds)
        measure_list(folder, caches)
        if given.huge:
            write_run(folder, "huge", f"tp8,pp16,dp{given.huge // 128}")
            first_start(folder, caches, ["huge"])
            with server(folder, caches) as one, browser_page() as page:
                took = opened_s(
                    page, f"{one.address}/run/huge/overview", "#waterfall-graph .plotly"
                )
                line(f"{given.huge:,} ranks: first chart", f"{took:.1f} s", "<= 5 s")
                took = opened_s(page, f"{one.address}/run/huge/timeline", CHART)
                line("  its timeline after that", f"{took:.1f} s", "<= 5 s")
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
