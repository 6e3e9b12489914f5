"""Runs the fuzz harnesses for a bounded time: ``python -m tests.fuzz.run --seconds 20``.

Each runs in a process of its own, one after the other; what breaks a reader is kept.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz.seeds import SEEDS

FORMATS = tuple(name for name in SEEDS if name != "capture")
"""Those that the importers read."""
_ROOT = Path(__file__).resolve().parents[2]
_STARTUP_S = 60


def run(name: str, seconds: int, folder: Path) -> str:
    """Run one harness; return an empty text, or what it found.

    Args:
        name: A format, or ``any``.
        seconds: How long it fuzzes, beside its start.
        folder: Gets the corpus and the inputs that break a reader.
    """
    command = [sys.executable, "-m", "tests.fuzz.harness", name, str(seconds), str(folder)]
    limit = seconds + _STARTUP_S
    try:
        done = subprocess.run(
            command, cwd=_ROOT, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{name}: did not end within {limit} s"
    if done.returncode == 0:
        count = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        print(f"{name}: {count[1] if count else 'some'} inputs in {seconds} s, nothing found")
        return ""
    kept = ", ".join(str(path) for path in sorted(folder.glob("*-*")) if path.is_file())
    return f"{name}: {kept or 'no input kept'}\n{(done.stdout + done.stderr)[-3000:]}"


def main() -> int:
    """Run the harnesses that the command line names; return the exit code."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=20, help="for each harness")
    options.add_argument("--formats", default=",".join(FORMATS), help="comma-separated, or any")
    options.add_argument("--out", type=Path, help="folder for what is found")
    given = options.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="meshscope-fuzz-"))
    found = [run(name, given.seconds, out / name) for name in given.formats.split(",")]
    for one in filter(None, found):
        print(one, file=sys.stderr)
    return 1 if any(found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
