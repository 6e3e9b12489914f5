"""Run every benchmark of this folder, one after the other, and print its figures.

    make bench                         all of them
    python bench/run.py hook ring      those whose file name contains a word

Benchmarks print figures. Those of the probe have budgets a call, in CPU time, which a
busy machine hardly changes: they say whether each is met. The driver fails if a budget is
exceeded or a benchmark could not run; no test does.
"""

import os
import platform
import subprocess
import sys
import time
import timeit
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def benchmarks(words: list[str]) -> list[Path]:
    """Return the benchmark files that match any of the words, all if there are none."""
    files = sorted(path for path in FOLDER.glob("*.py") if path.name != Path(__file__).name)
    return [path for path in files if not words or any(word in path.stem for word in words)]


def machine() -> str:
    """Return in one line what the figures were measured on."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    # Builds of the same version differ by a fifth, and machines by more: budgets are for one.
    calls = 100_000
    call_ns = min(timeit.repeat("f()", "def f(): pass", number=calls, repeat=9)) / calls * 1e9
    python = f"Python {platform.python_version()}, {call_ns:.0f} ns a call of a Python function"
    return f"{os.cpu_count()} CPU cores ({platform.machine()}), load {load}, {python}"


def main(words: list[str]) -> int:
    """Run the benchmarks; return 1 if one failed or none matched."""
    chosen = benchmarks(words)
    if not chosen:
        print(
            f"no benchmark in {FOLDER.name}/ matches {' '.join(words) or '*.py'}", file=sys.stderr
        )
        return 1
    print(machine())
    failed = []
    for path in chosen:
        print(f"\n== {path.stem}", flush=True)
        begin = time.monotonic()
        if subprocess.run([sys.executable, str(path)], check=False).returncode:
            failed.append(path.stem)
        print(f"-- {time.monotonic() - begin:.1f} s", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
