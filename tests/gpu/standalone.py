"""Checks of the probe on a GPU, as one script.

It needs torch, numpy and this checkout; ``nvidia-ml-py`` for the device's counters.

    python tests/gpu/standalone.py --out DIR [--only NAME ...] [--device cpu] [--seconds 540]

Every check runs in a process of its own: one that crashes, hangs or poisons the CUDA
context leaves the others alone. DIR gets ``results.json``, ``log.txt`` and what the
checks record (``nvml.jsonl.gz``, ``kineto-*.json.gz``). The exit code is 1 where a
check failed, else 0; a check that cannot be made here is skipped, with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SOURCES = HERE.parents[2] / "src"
_LEFT_FOR_THE_END_S = 5.0
_LOG_BYTES = 4 << 20
sys.path[:0] = [str(SOURCES), str(HERE.parent)]

from checks.context import Context, NotHere  # noqa: E402 - found through the path above
from checks.registry import CHECKS  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what was asked for and return the exit code."""
    options = _options(arguments)
    if options.list:
        for name, check in CHECKS.items():
            print(f"{name:14} {check.needs:4} {check.seconds:5.0f} s  {check.about}")
        return 0
    device = options.device or _device_here()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.child:
        return _child(options.child, Path(options.work), options.out, device)
    return _parent(options.only or list(CHECKS), options.out, device, options.seconds)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-checks"), help="where files go")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), help="just these checks")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="by default cuda if there is one")
    parser.add_argument("--seconds", type=float, default=540.0, help="for all checks together")
    parser.add_argument("--list", action="store_true", help="name the checks and end")
    parser.add_argument("--child", choices=list(CHECKS), help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _device_here() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _child(name: str, work: Path, out: Path, device: str) -> int:
    """Make one check in this process; what it finds is in a file of ``work``."""
    check = CHECKS[name]
    context = Context(device=device, out=out, work=work, seconds=check.seconds)
    context.save()
    try:
        function = check.load()
        if check.needs == "gpu":
            context.need_cuda()
        function(context)
    except NotHere as reason:
        context.skipped = str(reason)
    except Exception as error:  # noqa: BLE001 - whatever a check raises is its finding
        traceback.print_exc()
        context.problems.append(f"{type(error).__name__}: {error}")
    context.save()
    return 0


def _parent(names: Sequence[str], out: Path, device: str, seconds: float) -> int:
    """Run checks one after the other, tell what they found, and return the exit code."""
    deadline = time.monotonic() + seconds
    results: dict[str, dict[str, Any]] = {}
    # Socket paths are short, so scratch is not below a deep output folder.
    with tempfile.TemporaryDirectory(prefix="msgpu-") as scratch:
        for name in names:
            left = deadline - time.monotonic() - _LEFT_FOR_THE_END_S
            if left < 1:
                results[name] = {"state": "skipped", "skipped": "the time is used up"}
            else:
                results[name] = _one(name, Path(scratch), out, device, left)
            _tell(name, results[name])
            text = json.dumps({"device": device, "checks": results}, indent=1)
            (out / "results.json").write_text(text + "\n", encoding="utf-8")
    return _table(results)


def _one(name: str, scratch: Path, out: Path, device: str, left: float) -> dict[str, Any]:
    """Run one check in a process of its own and return what it found."""
    work = scratch / name
    work.mkdir()
    command = [sys.executable, str(HERE), "--child", name, "--work", str(work)]
    command += ["--out", str(out.resolve()), "--device", device]
    begin = time.monotonic()
    limit = min(left, CHECKS[name].seconds)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(SOURCES), os.environ.get("PYTHONPATH")])
    )
    with (work / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        code, ended = _wait(process, limit)
    found = _read(work / "result.json")
    if ended:
        found["problems"].append(f"was ended after {limit:.0f} s")
    elif code:
        found["problems"].append(f"its process ended with {code}")
    _keep_log(name, work / "log", out / "log.txt")
    state = "failed" if found["problems"] else "skipped" if found["skipped"] else "passed"
    return {"state": state, "took_s": round(time.monotonic() - begin, 1), **found}


def _wait(process: subprocess.Popen[bytes], limit: float) -> tuple[int, bool]:
    """Wait for a check; return its exit code, and whether it had to be ended."""
    try:
        return process.wait(limit), False
    except subprocess.TimeoutExpired:
        # Its own session: this ends the jobs that it started, too.
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait(), True


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return {"figures": {}, "problems": [f"left no result: {error}"], "skipped": ""}
    return found


def _keep_log(name: str, source: Path, target: Path) -> None:
    """Append the end of what a check printed to the log."""
    printed = source.read_bytes()[-_LOG_BYTES // len(CHECKS) :]
    with target.open("ab") as log:
        log.write(f"==== {name}\n".encode() + printed + b"\n")


def _tell(name: str, result: dict[str, Any]) -> None:
    """Print what a check found: a line for readers, one for programs."""
    why = "; ".join(result.get("problems") or []) or result.get("skipped", "")
    print(f"{result['state']:8} {name:14} {result.get('took_s', 0):6.1f} s  {why}")
    print(json.dumps({"check": name, **result}, separators=(",", ":")), flush=True)


def _table(results: dict[str, dict[str, Any]]) -> int:
    """Print all checks by state; return the exit code."""
    print()
    for name, result in results.items():
        figures = len(result.get("figures") or {})
        print(f"{name:14} {result['state']:8} {figures:3} figures")
    failed = [name for name, result in results.items() if result["state"] == "failed"]
    print(f"\n{len(results)} checks, {len(failed)} failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
