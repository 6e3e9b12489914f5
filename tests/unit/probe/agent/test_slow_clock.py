"""From a driver that tells a low clock, through the agent's files, to the cause with its cost."""

import os
import signal
import threading
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.played import play

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.agent.agent import Agent
from meshscope.probe.agent.settings import AgentSettings
from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.rundir import create_run

FACTOR, SLOW = 1.25, 3
STEPS = 6
UUID = "GPU-00000000-0000-0000-0000-{:012d}".format
LAYOUT = ParallelLayout(pp=2, dp=4)
RUN = {"world_size": 8, "layout": LAYOUT.to_json(), "schedule": "1f1b", "microbatches": 8}
LEAST = 10
"""Samples of each device that the agent must have taken."""


def sampled(run_path, sysfs):
    """Sample the devices of the stub into a run; return the times of the samples."""
    settings = AgentSettings(interval_s=0.1, flush_s=0.1, sysfs=sysfs, duration_s=120.0)
    agent = Agent(run_path, settings)

    def rows():
        table = read_run(run_path).tables.get("device_sample") if _has_rows(run_path) else None
        return 0 if table is None else table.num_rows

    def beside():
        for _ in range(1000):
            if rows() >= 8 * LEAST:
                break
            threading.Event().wait(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        agent.run()
    finally:
        thread.join()
        agent.close()
    return read_run(run_path).tables["device_sample"]["time_ns"]


def _has_rows(run_path):
    return any(run_path.glob("host-*/seg-*"))


def placed(trace, begin_ns, end_ns):
    """Return a capture stretched and moved to lie between two times."""
    step = trace.frame("step")
    length = int((step["start_ns"] + step["dur_ns"]).max())
    factor = (end_ns - begin_ns) // length
    tables = {}
    for name, table in trace.tables.items():
        for column in table.column_names:
            if column.endswith("_ns"):
                values = pc.multiply(table[column], factor)
                if column not in ("dur_ns", "cpu_ns"):
                    values = pc.add(values, begin_ns)
                at = table.schema.get_field_index(column)
                table = table.set_column(at, table.schema.field(at), values.cast(pa.int64()))
        tables[name] = table
    return replace(trace, tables=tables, _frames={})


@pytest.fixture(autouse=True)
def _sockets(tmp_path, monkeypatch):
    """Put the sockets of the agent into the folder of the test."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


def test_a_recorded_clock_becomes_a_cause_with_its_cost(tmp_path, scenario, sysfs):
    """Fails when anything between driver, agent, run directory and replay loses a low clock."""
    low_mhz = 1980 / FACTOR
    scenario.add(f"set {SLOW} sm_clock {low_mhz}", f"set {SLOW} throttle 64", "set * gpu_util 100")
    scenario.add("set * gpm_10 20", "set * gpm_5 45")
    run_path = create_run(tmp_path, "run", RUN)
    times = sampled(run_path, sysfs)
    begin, end = pc.min(times).as_py(), pc.max(times).as_py()
    fault = parse_fault(f"clock_drop:rank={SLOW},factor={FACTOR}")
    job = SyntheticJob(layout=LAYOUT, steps=STEPS, faults=(fault,))
    trace, truth = generate(job)
    play(
        placed(trace, begin, end),
        tmp_path,
        FullRecords(),
        into=run_path,
        devices={rank: UUID(rank) for rank in trace.ranks},
        slot_count=4096,
    )
    result = diagnose(load_trace(run_path))
    (cause,) = [c for c in result.causes if c.kind in ("clock_throttle", "straggler_rank")]
    assert cause.kind == "clock_throttle"
    assert cause.where["rank"] == SLOW
    gain = truth.faults[0].removal_gain_ns / truth.step_time_ns
    assert cause.removal_gain_frac == pytest.approx(gain, rel=0.05)
    (finding,) = [f for f in result.findings if f.kind == "clock_throttle"]
    assert "ran at 80.0 % of its peers' clock: hardware thermal slowdown" in str(finding.claim)
    bars = {bar.name: bar.frac for bar in result.waterfall}
    compute = bars["forward"] + bars["backward"] + bars["clock"]
    # One of eight ranks computes a quarter longer, of which a fifth is the clock's.
    assert bars["clock"] / compute == pytest.approx(0.25 / 8.25, rel=0.05)
    assert sum(bars.values()) == pytest.approx(1, abs=1e-9)
