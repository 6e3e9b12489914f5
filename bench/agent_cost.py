"""What the node agent costs: its share of a core, its memory, and what it writes.

    python bench/agent_cost.py [--seconds N]

Eight devices of a stub of the driver library (tests/nvml_stub, needs a C compiler), eight
InfiniBand ports in a tree like sysfs, and eight ranks that record 300 spans and a step
each second. The CPU time is that of the agent and of its reader processes, as the kernel
counts it; it is to be held against 2 % of a core at one sample a second. A real driver
takes longer for a call than the stub, but mostly waits.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.nvml_stub import Scenario, build, missing_compiler

from meshscope.probe.agent.links import INFINIBAND_COUNTERS
from meshscope.probe.clock import now_ns
from meshscope.probe.control.client import ask
from meshscope.probe.recording.record_heads import span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.records import SPAN_CODES
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.terms import SpanKind

BUDGET_FRAC = 0.02
DEVICES = PORTS = RANKS = 8
SPANS_PER_STEP = 300
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main():
    """Measure and print; say whether the budget holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    if reason := missing_compiler():
        print(f"not measured: {reason}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "runtime").mkdir(mode=0o700)
        run_path = create_run(folder, "run", {"device_name": "CPU", "world_size": RANKS})
        scenario = Scenario(folder / "scenario", DEVICES)
        for field in (138, 139):
            scenario.add(f"set * field_{field}_-1 1000 1000000")
        scenario.add("set * gpm_2 80", "set * gpm_5 40", "set * pid 4242")
        library = build(folder / "library")
        environment = {
            **scenario.environment(library),
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
        }
        sysfs = ports(folder / "sys")
        quiet = StorageSettings(wake_s=3600.0)
        ranks = [Recorder(run_path, rank, settings=quiet) for rank in range(RANKS)]
        command = [sys.executable, "-P", "-m", "meshscope", "agent"]
        command += ["--run", str(run_path), "--sysfs", str(sysfs)]
        agent = subprocess.Popen(command, env=environment)
        try:
            measure(agent, run_path, ranks, seconds)
        finally:
            agent.terminate()
            agent.wait(10)
            for rank in ranks:
                rank.close()


def measure(agent, run_path, ranks, seconds):
    """Print the cost at the usual rate and in a burst."""
    record(ranks, 5.0)
    usual = share(agent.pid, ranks, seconds)
    before = stored_bytes(run_path)
    manifest = json.loads(next(run_path.glob("host-*/manifest.json")).read_text())
    ask(Path(manifest["control_socket"]), "burst", {"seconds": 600})
    burst = share(agent.pid, ranks, seconds)
    print(f"{DEVICES} devices, {PORTS} ports, {RANKS} ranks of {SPANS_PER_STEP} spans a second")
    print(f"at  1 Hz: {usual:.2%} of a core")
    print(f"at 10 Hz: {burst:.2%} of a core")
    memory = {name: rss_bytes(pid) for pid, name in processes(agent.pid).items()}
    print("memory: " + ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in memory.items()))
    print(
        f"written at 1 Hz: {before / (seconds + 5.0) * 3600 / 2**20:.1f} MiB an hour (first block: more)"
    )
    verdict = "within" if usual <= BUDGET_FRAC else "over"
    print(f"budget {BUDGET_FRAC:.0%} of a core at 1 Hz: {verdict}")


def share(pid, ranks, seconds):
    """Return CPU time of the agent and its children per time, while ranks record."""
    before, start_ns = cpu_s(pid), now_ns()
    record(ranks, seconds)
    return (cpu_s(pid) - before) / ((now_ns() - start_ns) / 1e9)


def record(ranks, seconds):
    """Have every rank record a step a second."""
    pause = threading.Event()
    for _ in range(round(seconds)):
        for rank in ranks:
            begin_ns = now_ns()
            for at in range(SPANS_PER_STEP):
                kind = SPAN_CODES[SpanKind.FORWARD]
                rank.record_span(span_head(kind, 0, 0), begin_ns + at, 1, 1, at)
            rank.record_step(rank.step, begin_ns, 1_000_000_000)
            rank.step += 1
        pause.wait(1.0)


def ports(root):
    """Make a tree of InfiniBand ports; return its root."""
    for device in range(PORTS):
        port = root / f"class/infiniband/mlx5_{device}/ports/1"
        for paths in INFINIBAND_COUNTERS.values():
            for path in paths:
                (port / path).parent.mkdir(parents=True, exist_ok=True)
                (port / path).write_text("12345\n")
        (port / "link_layer").write_text("InfiniBand\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    return root


def processes(pid):
    """Return the agent and its children with what they are."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = {pid: "agent"}
    for child in children:
        words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        found[int(child)] = words[4].decode() + " reader"
    return found


def cpu_s(pid):
    """Return the CPU seconds of the agent and its children so far."""
    total = 0
    for one in processes(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def rss_bytes(pid):
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def stored_bytes(run_path):
    """Return the size of the segments of the host."""
    return sum(path.stat().st_size for path in run_path.glob("host-*/seg-*"))


if __name__ == "__main__":
    main()
