"""Hosts of one machine: network namespaces with a switch between them, whose links can be shaped.

All namespaces read one clock, so what a capture says of their clocks can be held against 0.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

PORT = 29511
PATIENCE_S = 300.0
_BURST = ("burst", "32k", "latency", "400ms")


def why_not() -> str | None:
    """Return why this machine cannot have namespaces with shaped links; None if it can."""
    for program in ("ip", "tc", "unshare", "mount"):
        if shutil.which(program) is None:
            return f"network namespaces need the program {program}, which is not there"
    name = f"ms{os.getpid()}try"
    made = _attempt("ip", "netns", "add", name)
    if made is not None:
        return f"ip netns add is not permitted here: {made}"
    try:
        pair = ("ip", "-n", name, "link", "add", "try0", "type", "veth", "peer", "name", "try1")
        for command in (
            pair,
            (
                "tc",
                "-n",
                name,
                "qdisc",
                "add",
                "dev",
                "try0",
                "root",
                "tbf",
                "rate",
                "1mbit",
                *_BURST,
            ),
            ("ip", "netns", "exec", name, "unshare", "--uts", "--mount", "true"),
        ):
            refused = _attempt(*command)
            if refused is not None:
                return f"{' '.join(command[:6])} … is not permitted here: {refused}"
    finally:
        _attempt("ip", "netns", "del", name)
    return None


def _attempt(*command: str) -> str | None:
    """Do a command; return what it complains of if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr.strip() or f"exit {done.returncode}")


def _do(*command: str) -> None:
    complaint = _attempt(*command)
    if complaint is not None:
        raise RuntimeError(f"{' '.join(command)}: {complaint}")


@contextmanager
def hosts(count: int, mbit_out: Mapping[int, float]) -> Iterator[list[str]]:
    """Give hosts that reach each other over one switch; yield the names of their namespaces.

    Args:
        count: How many.
        mbit_out: What some of them can send at most, by host.
    """
    switch = f"ms{os.getpid()}switch"
    names = [f"ms{os.getpid()}host{number}" for number in range(count)]
    try:
        _do("ip", "netns", "add", switch)
        _do("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _do("ip", "-n", switch, "link", "set", "br0", "up")
        for number, name in enumerate(names):
            port = f"port{number}"
            _do("ip", "netns", "add", name)
            link = ("ip", "-n", name, "link", "add", "eth0", "type", "veth")
            _do(*link, "peer", "name", port, "netns", switch)
            _do("ip", "-n", switch, "link", "set", port, "master", "br0", "up")
            _do("ip", "-n", name, "addr", "add", f"{_address(number)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _do("ip", "-n", name, "link", "set", device, "up")
        for number, rate in mbit_out.items():
            shape = ("tc", "-n", names[number], "qdisc", "add", "dev", "eth0", "root", "tbf")
            _do(*shape, "rate", f"{rate:g}mbit", *_BURST)
        yield names
    finally:
        for name in (*names, switch):
            _attempt("ip", "netns", "del", name)


def _address(number: int) -> str:
    return f"10.77.0.{number + 1}"


def train_over(
    folder: Path,
    mbit_out: Mapping[int, float],
    *,
    ranks: int,
    arguments: Sequence[str],
    per_host: int = 1,
) -> Path:
    """Train over hosts that are each recorded as a machine of its own; return the run.

    Args:
        folder: An empty folder.
        mbit_out: What some hosts can send at most.
        ranks: How many ranks.
        arguments: Of the reference trainer.
        per_host: Ranks of each host.
    """
    with hosts(ranks // per_host, mbit_out) as names:
        started = [
            _start(folder, Place(rank, ranks, per_host, names[rank // per_host]), arguments)
            for rank in range(ranks)
        ]
        try:
            codes = [rank.wait(PATIENCE_S) for rank in started]
        finally:
            for rank in started:
                rank.kill()
                rank.wait()
    printed = "\n".join((folder / f"rank{rank}.txt").read_text()[-2000:] for rank in range(ranks))
    assert codes == [0] * ranks, printed
    return folder / "runs" / "run"


class Place(NamedTuple):
    """Where a rank runs."""

    rank: int
    ranks: int
    per_host: int
    host: str


def _start(folder: Path, place: Place, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    rank, ranks, per_host, name = place
    boot = folder / f"boot{rank}"
    boot.write_text(f"{uuid.uuid5(uuid.NAMESPACE_DNS, name)}\n")
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank % per_host),
        "LOCAL_WORLD_SIZE": str(per_host),
        "MASTER_ADDR": _address(0),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "MESHSCOPE_COST_BUDGET_PPM": "0",
    }
    recorded = [sys.executable, "-m", "meshscope", "run", "--runs", str(folder / "runs")]
    recorded += ["--run-id", "run", "--"]
    train = [sys.executable, "-m", "meshscope.reference_trainer", "--out", str(folder / "out")]
    # A boot of its own: processes of one boot are known to share a clock.
    script = (
        'hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && shift 2 && exec "$@"'
    )
    enter = ["ip", "netns", "exec", name, "unshare", "--uts", "--mount", "sh", "-c", script, "sh"]
    with (folder / f"rank{rank}.txt").open("wb") as log:
        return subprocess.Popen(
            [*enter, name, str(boot), *recorded, *train, *arguments],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
