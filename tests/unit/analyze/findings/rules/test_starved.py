"""Slow transfers on hosts that are short of processors."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests.messages import of_code
from tests.synthetic import MS, Job, capture, capture_of, programs, uniform

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.host_tables import HOST_TABLES
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES


def _slower(op):
    """Return an operation, 3 ms longer on the wire in one tensor group."""
    if op[0] == "collective" and op[2][0] == "tp-2":
        return (*op[:-1], op[-1] + 3 * MS)
    return op


def with_a_slow_group(load, origin="host_blocking", sampled="a"):
    """Return the finding on a tensor group that takes 3 ms longer, on one host under some load.

    Args:
        load: Of the host that was sampled.
        origin: How the transfers were timed.
        sampled: The host; that of the ranks is ``a``.
    """
    job = Job(layout=ParallelLayout(tp=2, dp=4), microbatches=2, steps=6)
    slower = [[_slower(op) for op in own] for own in programs(job, uniform(10 * MS, 20 * MS))]
    trace = capture_of(job, slower)
    rows = trace.tables["collective"].to_pylist()
    for row in rows:
        row["source"] = origin
    samples = [{"host": sampled, "time_ns": 0, "cpus": 4, "load_1m": load}]
    tables = {
        **trace.tables,
        "collective": TABLES["collective"].conform(pa.Table.from_pylist(rows)),
        "host_sample": HOST_TABLES["host_sample"].conform(pa.Table.from_pylist(samples)),
    }
    clocks = dict.fromkeys(trace.ranks, "a")
    findings = diagnose(replace(trace, tables=tables, clocks=clocks, _frames={})).findings
    return next(found for found in findings if found.kind == "slow_link")


@pytest.mark.parametrize(
    ("load", "origin", "starved"),
    [(24.0, "host_blocking", True), (4.0, "host_blocking", False), (24.0, "imported", False)],
)
def test_processors_that_are_short_are_likelier_than_a_wire(load, origin, starved):
    """Fails when a host with six tasks a processor is told to look at its cables first."""
    found = with_a_slow_group(load, origin)
    assert found.where["group_id"] == "tp-2"
    assert str(found.remedy).startswith("Give the ranks enough CPUs") == starved
    shortages = [fact["shortage"] for fact in of_code(found.evidence, "crowded.moves_data")]
    assert ({"host": "a", "tasks": 24, "cpus": 4} in [own.values for own in shortages]) == starved
    assert (found.confidence < 0.5) == starved


def test_a_host_that_was_not_sampled_is_not_called_short():
    """Fails when samples of other hosts alone end the diagnosis, or speak for this one."""
    found = with_a_slow_group(24.0, sampled="b")
    assert not of_code(found.evidence, "crowded.moves_data")


def crowded_job(late_ns, off_ns, load=24.0, cpu_late_ns=0, queued=None):
    """Return findings of a healthy job of four ranks, of which rank 1 is late, on a host under load.

    Args:
        late_ns: By how much each pass of rank 1 takes longer.
        off_ns: How long each pass of any rank was without a processor.
        load: Of its four processors.
        cpu_late_ns: What of ``late_ns`` was spent on a processor.
        queued: By rank, which share of its time the kernel counted as waiting for a processor.
    """
    job = Job(layout=ParallelLayout(dp=4), microbatches=2, steps=30)
    return on_one_host(
        job,
        lambda kind, rank, step, microbatch: 20 * MS + off_ns + late_ns * (rank == 1),
        lambda rank: 20 * MS + cpu_late_ns * (rank == 1),
        load,
        queued=queued,
    )


def on_one_host(job, wall_of, cpu_of, load, stall=None, queued=None):
    """Return findings of a job whose ranks share the four processors of a host, without its optimizer.

    Args:
        job: The job.
        wall_of: How long each pass takes.
        cpu_of: How long each pass of a rank is on a processor.
        load: Of the host.
        stall: Share of time in which some task waited for a processor.
        queued: By rank, which share of its time the kernel counted as waiting for a processor.
    """
    base = capture(job, wall_of)
    spans = [row for row in base.tables["span"].to_pylist() if row["kind"] != "optimizer"]
    for row in spans:
        row["cpu_ns"] = cpu_of(row["rank"])
    tables = {"span": TABLES["span"].conform(pa.Table.from_pylist(spans))}
    for name in ("collective", "p2p"):
        rows = base.tables[name].to_pylist() if name in base.tables else []
        for row in rows:
            row["source"] = "host_blocking"
        if rows:
            tables[name] = TABLES[name].conform(pa.Table.from_pylist(rows))
    samples = [{"host": "a", "time_ns": 0, "cpus": 4, "load_1m": load, "cpu_stall_frac": stall}]
    tables["host_sample"] = HOST_TABLES["host_sample"].conform(pa.Table.from_pylist(samples))
    row = {"step": 0, "level": "collectives", "steps": job.steps, "dur_ns": 1000 * MS}
    stretches = [
        {**row, "rank": rank, "queued_ns": round(share * 1000 * MS)}
        for rank, share in enumerate(queued or ())
    ]
    if stretches:
        tables["recording"] = TABLES["recording"].conform(pa.Table.from_pylist(stretches))
    run = {**base.run, "device_name": "CPU"}
    clocks = dict.fromkeys(base.ranks, "a")
    tables = {**base.tables, **tables}
    return diagnose(replace(base, run=run, tables=tables, clocks=clocks, _frames={})).findings


def test_a_crowded_host_is_said_once_and_first():
    """Fails when what a crowded host makes late is listed cause by cause, the host last or never."""
    findings = crowded_job(5 * MS, 10 * MS)
    assert (findings[0].cause, findings[0].where) == ("contention", {"host": "a"})
    assert [found.cause for found in findings].count("contention") == 1
    assert str(findings[0].claim).startswith("Host a has 24 runnable tasks for 4 CPUs")
    assert all(found.cause != "contention" for found in crowded_job(5 * MS, 10 * MS, load=2.0))


@pytest.mark.parametrize(
    ("late_ms", "off_ms", "cpu_late_ms", "load", "is_blamed"),
    [
        (5, 10, 0, 24.0, False),
        (5, 10, 5, 24.0, True),
        (50, 10, 0, 24.0, True),
        (5, 10, 0, 2.0, True),
    ],
    ids=["waits as the others do", "computes longer", "sleeps far longer", "host is idle"],
)
def test_a_rank_that_waits_for_a_processor_is_not_blamed(
    late_ms, off_ms, cpu_late_ms, load, is_blamed
):
    """Fails when healthy ranks of a crowded host are critical stragglers at 99 %."""
    findings = crowded_job(late_ms * MS, off_ms * MS, load, cpu_late_ms * MS)
    (found,) = (own for own in findings if own.kind == "straggler_rank")
    assert found.where["rank"] == 1
    assert (found.confidence >= 0.5) == is_blamed
    assert (found.severity == "critical") == is_blamed
    assert (found.remedy.code == "crowded.remedy") == (not is_blamed)


@pytest.mark.parametrize(
    ("queued", "is_blamed"),
    [
        ((0.3, 0.3, 0.3, 0.3), True),
        ((0.3, 0.4, 0.3, 0.3), False),
        ((0.1, 0.15, 0.1, 0.1), False),
        ((0.1, 0.1, 0.1, 0.1), True),
        ((0.0, 0.0, 0.0, 0.0), False),
    ],
    ids=["sleeps", "waits", "its threads wait", "sleeps beside threads that wait", "not counted"],
)
def test_what_the_kernel_counted_tells_a_sleep_from_a_wait_for_a_processor(queued, is_blamed):
    """Fails when a rank that sleeps on a crowded host is excused, or one that waits there is blamed."""
    findings = crowded_job(5 * MS, 10 * MS, queued=queued)
    (found,) = (own for own in findings if own.kind == "straggler_rank")
    assert found.where["rank"] == 1
    assert (found.confidence >= 0.5) == is_blamed
    said = of_code(found.evidence, "crowded.queued")
    assert bool(said) == (is_blamed and queued[0] > 0)
    assert all(own["own_ns"] == pytest.approx(own["peers_ns"]) for own in said)


def late_by_turns(stall, load=24.0):
    """Return findings of a job in which another rank is 30 ms late in each step, off the processor."""
    job = Job(layout=ParallelLayout(dp=4), microbatches=2, steps=40)
    turns = np.random.default_rng(4).integers(0, 4, 40).tolist()

    def wall(kind, rank, step, microbatch):
        is_late = rank == turns[step] and kind == "forward" and microbatch == 0
        return 30 * MS + 30 * MS * is_late

    return on_one_host(job, wall, lambda rank: 20 * MS, load, stall)


@pytest.mark.parametrize(
    ("stall", "load", "is_crowding"),
    [(0.9, 24.0, True), (0.02, 24.0, False), (0.9, 2.0, False)],
    ids=["waits for a processor", "sleeps", "host is idle"],
)
def test_delays_by_chance_on_a_crowded_host_are_waits_for_it(stall, load, is_crowding):
    """Fails when a shortage of processors comes below its own symptoms, as jitter to repair at 80 %."""
    findings = late_by_turns(stall, load)
    (found,) = (own for own in findings if own.kind == "jitter")
    assert (found.confidence < 0.5) == is_crowding
    assert bool(of_code(found.evidence, "crowded.delays_any")) == is_crowding
    assert (findings[0].cause == "contention") == is_crowding
    lost = [own["share"] for one in findings for own in of_code(one.evidence, "crowded.lost")]
    assert all(share <= stall for share in lost)
    if is_crowding:
        assert findings[0].severity == "critical"
        assert found.severity != "critical"


@pytest.mark.parametrize(
    ("cpu_ms", "load", "is_excused"),
    [(20, 24.0, True), (24, 24.0, False), (20, 2.0, False)],
    ids=["waits as the others do", "computes longer", "host is idle"],
)
def test_a_stage_that_waits_for_processors_is_not_surely_heavy(cpu_ms, load, is_excused):
    """Fails when stages of equal work on a crowded host are told to move layers, at 90 %."""
    job = Job(layout=ParallelLayout(pp=2, dp=2), microbatches=4, steps=12)
    stage_of = {0: 0, 1: 0, 2: 1, 3: 1}
    findings = on_one_host(
        job,
        lambda kind, rank, step, microbatch: (38 if stage_of[rank] else 30) * MS,
        lambda rank: (cpu_ms if stage_of[rank] else 20) * MS,
        load,
    )
    (found,) = (own for own in findings if own.kind == "stage_imbalance")
    assert found.where["stage"] == 1
    assert (found.confidence < 0.5) == is_excused
    assert (found.remedy.code == "crowded.remedy") == is_excused


def test_a_loop_that_sleeps_between_passes_had_no_work():
    """Fails when ranks that wait for data are said to have had work and no processor."""
    layout = ParallelLayout(dp=4)
    job = Job(layout=layout, microbatches=2, steps=12, optimizer_ns=200 * MS)
    findings = on_one_host(job, lambda *_: 20 * MS, lambda rank: 20 * MS, 24.0)
    (found,) = (own for own in findings if own.cause == "contention")
    (lost,) = of_code(found.evidence, "crowded.lost")
    assert lost["share"] < 0.01
    assert found.severity == "warning"
