"""Clocks that were set wrong are found, corrected and stated; clocks that agree stay."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.skew import TIMES, shifted
from tests.synthetic import MS, Job, capture
from tests.tables import host_row, trace_of
from tests.texts import texts

from meshscope.analyze.align.clocks.alignment import align, estimate_offsets
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.synthetic import Costs, Fault, FaultKind, SyntheticJob, generate
from meshscope.analyze.tables.trace import Trace
from meshscope.analyze.wording.quantities import duration
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import ScheduleKind

CUBE = ParallelLayout(tp=2, pp=2, dp=2)
HOSTS = {rank: f"host{rank // 4}" for rank in range(8)}
"""Each stage on a host, so that no collective crosses hosts."""


def slow_rank(kind: str, rank: int, step: int, microbatch: int) -> int:
    """Return work of which rank 5 needs 1.3 times as much."""
    return (13 if rank == 5 else 10) * (1 if kind == "forward" else 2) * MS


@pytest.fixture(scope="module")
def job() -> Trace:
    """Return a 2x2x2 job of 16 steps (1.4 s) with a slow rank, every rank on a clock of its own."""
    return capture(Job(layout=CUBE, steps=16), slow_rank)


@pytest.fixture(scope="module")
def hosts(job) -> Trace:
    """Return the same with one clock a stage."""
    return replace(job, clocks=HOSTS)


@pytest.fixture(scope="module")
def truth(job):
    """Return what a diagnosis on true clocks says."""
    return conclusions(diagnose(job))


def conclusions(result) -> dict:
    """Return the findings and causes of a diagnosis with their figures.

    Without the hosts of the places, which only the clocks tell here.
    """
    found = {
        (f.kind, str({**f.where, "host": ""})): (f.cost_frac or 0.0, f.removal_gain_frac or 0.0)
        for f in result.findings
    }
    caused = {(c.kind, str(c.where)): (c.share_frac, c.direct_ns) for c in result.causes}
    return {**found, **{("cause", *key): value for key, value in caused.items()}}


def close(found: dict, truth: dict) -> bool:
    """Return whether two diagnoses say the same, to 1e-6."""
    return found.keys() == truth.keys() and all(
        found[key] == pytest.approx(truth[key], rel=1e-6, abs=1e-6) for key in truth
    )


def offsets(trace: Trace) -> dict[str, float]:
    """Return the estimated offset of each clock that is not a reference."""
    table = estimate_offsets(trace).to_pandas()
    return dict(zip(table["host"], table["offset_ns"], strict=True))


def says(trace: Trace, *words: str) -> bool:
    """Return whether one limit holds all the words."""
    return any(all(word in limit for word in words) for limit in texts(trace.limits))


@pytest.mark.parametrize("offset_ns", [1_000, -30_000, 100_000, 10 * MS, -1000 * MS, 10**15])
def test_a_host_that_holds_whole_groups(hosts, truth, offset_ns):
    """A host that only sends and receives cross would change findings, waits and causes."""
    aligned = align(shifted(hosts, {4, 5, 6, 7}, offset_ns))
    assert close(conclusions(diagnose(aligned)), truth)
    assert says(aligned, "1 of 2 clocks corrected", duration(abs(offset_ns)))


@pytest.mark.parametrize("offset_ns", [100_000, -3 * MS, 1000 * MS])
def test_one_rank_among_others(job, truth, offset_ns):
    """A rank whose clock is wrong would be a straggler, or end the analysis of the causes."""
    wrong = shifted(job, {6}, offset_ns)
    assert offsets(wrong)["rank 6"] == -offset_ns
    aligned = align(wrong)
    assert close(conclusions(diagnose(aligned)), truth)
    assert aligned.frame("clock_sync")["host"].tolist() == ["rank 6"]
    assert aligned.frame("step").equals(job.frame("step"))
    assert aligned.frame("collective").equals(job.frame("collective"))


def test_clocks_that_agree_are_left_alone(job, hosts):
    """Times of a healthy capture would move by what members leave a collective apart."""
    assert align(job) is job
    assert align(hosts) is hosts
    near = shifted(job, {2}, 5_000)
    assert align(near) is near


def test_what_is_aligned_stays(job):
    """A correction would be made again and again, each time a little different."""
    aligned = align(shifted(job, {0, 3}, 7 * MS))
    assert align(aligned) is aligned


def test_ranks_on_one_clock_are_never_moved_apart(job):
    """Ranks of one machine would get offsets to each other that cannot be."""
    one = shifted(replace(job, clocks=dict.fromkeys(range(8), "host")), {3}, 5 * MS)
    assert align(one) is one
    assert estimate_offsets(one).num_rows == 0


def one_row(name: str) -> pa.Table:
    """Return a row of rank 6 in a table, with 7 ms wherever nanoseconds stand."""
    values = {"int64": 7 * MS, "category": "x", "string": "x", "float64": 7.0, "bool": True}
    columns = {column.name: [values.get(column.dtype, 6)] for column in TABLES[name].columns}
    return TABLES[name].conform(pa.table(columns))


@pytest.mark.parametrize("drift", [0.0, 50e-6])
@pytest.mark.parametrize("name", ["communication_sum", "recording", "progress", "span", "p2p"])
def test_what_lasts_is_as_long_on_a_corrected_clock(job, name, drift):
    """Fails when the length of something is moved like a time: sums of a rank would be off by its clock."""
    lengths = [c.name for c in TABLES[name].columns if c.unit == "ns" and c.name not in TIMES]
    rows = one_row(name)
    if len(frame := job.frame(name)):
        rows = TABLES[name].conform(
            pa.Table.from_pandas(frame.fillna(dict.fromkeys(lengths, 7 * MS)), preserve_index=False)
        )
    trace = replace(job, tables={**job.tables, name: rows}, _frames={})
    before = trace.frame(name)[lengths]
    after = align(shifted(trace, {6}, 3 * MS, drift)).frame(name)[lengths]
    # The length of a span is corrected by its drift, and that of a clock is known to the microsecond.
    pd.testing.assert_frame_equal(after, before, check_dtype=False, rtol=1e-4)


@pytest.mark.parametrize("ranks", [{1}, {4, 5, 6, 7}])
def test_drift_is_stated_and_corrected(job, hosts, truth, ranks):
    """Clocks that run apart would be right in the middle of a capture and wrong at its ends."""
    trace = hosts if len(ranks) > 1 else job
    aligned = align(shifted(trace, ranks, 3 * MS, drift=50e-6))
    assert says(aligned, "drifting", "50.0 ppm")
    drift = aligned.frame("clock_sync")["drift_ppm"].abs()
    assert drift.tolist() == pytest.approx([50], abs=0.1)
    found = conclusions(diagnose(aligned))
    (straggler,) = (key for key in found if key[0] == "straggler_rank")
    assert found[straggler] == pytest.approx(truth[straggler], abs=1e-4)
    ends = aligned.frame("step")["start_ns"] + aligned.frame("step")["dur_ns"]
    same = aligned.frame("step")["rank"].eq(aligned.frame("step")["rank"].shift(-1))
    assert (ends == aligned.frame("step")["start_ns"].shift(-1))[same].all()


def test_clocks_that_nothing_connects(job):
    """Times that cannot be compared would be compared without a word."""
    tables = {**job.tables, "p2p": TABLES["p2p"].empty()}
    apart = replace(job, tables=tables, clocks=HOSTS, _frames={})
    aligned = align(shifted(apart, {4, 5, 6, 7}, 50 * MS))
    assert says(aligned, "2 sets of ranks", "host0 and host1", "unknown")
    assert aligned.frame("clock_sync").empty


def test_sends_in_one_direction_bound_but_do_not_tell(job):
    """An offset would be invented from a bound on one side."""
    back = job.frame("p2p")
    one_way = back[(back["rank"] < 4) == (back["direction"] == "send")]
    tables = {**job.tables, "p2p": TABLES["p2p"].conform(pa.Table.from_pandas(one_way))}
    aligned = align(replace(job, tables=tables, clocks=HOSTS, _frames={}))
    assert says(aligned, "2 sets of ranks")


def test_without_communication_or_a_second_rank():
    """A capture of one rank, or of ranks that never spoke, would not load."""
    rows = [{"rank": rank, "start_ns": 0, "dur_ns": 10} for rank in (0, 1)]
    alone = trace_of(step=rows[:1])
    assert align(alone) is alone
    assert estimate_offsets(trace_of(ranks=())).num_rows == 0
    silent = align(trace_of(step=rows))
    assert says(silent, "2 sets of ranks")


def test_steps_with_origins_of_their_own_are_left_alone(job):
    """Steps that have no clock would be moved as if they had one."""
    trace = replace(shifted(job, {5}, 50 * MS), per_step_clock=True)
    assert align(trace) is trace


def common_end(seq: int, ends_ns: list[int], **row: object) -> list[dict]:
    """Return the members of one collective, each there for 1 ms."""
    return [host_row(end - MS, end, rank=rank, seq=seq, **row) for rank, end in enumerate(ends_ns)]


def test_a_few_wrong_moments_do_not_move_an_offset():
    """One late wake-up of a host would move all its times."""
    late = [9 * MS if seq % 4 == 0 else 0 for seq in range(20)]
    rows = [
        row
        for seq, extra in enumerate(late)
        for row in common_end(seq, [seq * 10 * MS, seq * 10 * MS + 2 * MS + extra])
    ]
    assert offsets(trace_of(collective=rows, ranks=(0, 1))) == {"rank 1": pytest.approx(-2 * MS)}


def messages(wire_ns: int, ahead_ns: int) -> list[dict]:
    """Return a message each way between two ranks in each of 20 steps; the second has a clock ahead."""
    rows = []
    for step in range(20):
        for sender, receiver, sent_ns in ((0, 1, 10 * step * MS), (1, 0, (10 * step + 5) * MS)):
            got_ns = sent_ns + wire_ns * (1 + step % 3)
            place = {"group_id": "pp", "step": step, "seq": step}
            ends = ((sender, receiver, "send", sent_ns), (receiver, sender, "recv", got_ns))
            for rank, peer, direction, end_ns in ends:
                end = end_ns + ahead_ns * (rank == 1)
                row = host_row(end - (2 * MS if direction == "recv" else 0), end, rank=rank)
                rows.append({**row, **place, "peer": peer, "direction": direction})
    return rows


@pytest.mark.parametrize(
    ("late_ns", "wire_ns", "off_ns", "error_ns"),
    [(MS, MS // 10, 0, 0.11 * MS), (MS // 1000, MS // 10, -1500, 0.01 * MS)],
)
def test_messages_tell_a_clock_better_than_hosts_that_wake_up_late(
    late_ns, wire_ns, off_ns, error_ns
):
    """Fails when clocks stay as far apart as hosts see a collective end, or devices are not believed."""
    rows = [
        row
        for seq in range(20)
        for row in common_end(
            seq, [10 * seq * MS, 10 * seq * MS + 40 * MS + (1 + seq % 2) * late_ns]
        )
    ]
    trace = trace_of(collective=rows, p2p=messages(wire_ns, 40 * MS), ranks=(0, 1))
    (row,) = estimate_offsets(trace).to_pylist()
    assert row["offset_ns"] == pytest.approx(-40 * MS + off_ns, abs=1)
    assert row["error_ns"] < error_ns


def test_one_collective_does_not_outweigh_messages(hosts):
    """One late wake-up at a barrier of the world would set the clocks of whole hosts wrong."""
    frame = hosts.frame("collective").astype({"group_id": str})
    barrier = frame.drop_duplicates("rank").assign(group_id="world", seq=0, event_id=10**6)
    late = barrier["rank"] >= 4
    barrier.loc[late, ["end_ns", "wait_end_ns"]] += MS - barrier.loc[late, "end_ns"]
    barrier.loc[~late, ["end_ns", "wait_end_ns"]] -= barrier.loc[~late, "end_ns"]
    barrier["wait_start_ns"] = barrier["end_ns"] - MS
    both = pa.Table.from_pandas(pd.concat([frame, barrier]), preserve_index=False)
    tables = {**hosts.tables, "collective": TABLES["collective"].conform(both)}
    assert offsets(replace(hosts, tables=tables, _frames={})) == {"host1": pytest.approx(0, abs=1)}


def test_an_end_that_a_host_saw_late_is_no_evidence():
    """A rank that looks at its operations late would be taken for one with a slow clock."""
    rows = []
    for seq in range(20):
        first, second = common_end(seq, [seq * 10 * MS, seq * 10 * MS + 5 * MS])
        second |= {"wait_start_ns": second["end_ns"] - 1_000}
        rows += [first, second]
    assert offsets(trace_of(collective=rows, ranks=(0, 1))) == {}


def test_nothing_but_points_in_time_changes():
    """Durations, identifiers or unknown times would be changed with the clock."""
    rows = [row for seq in range(9) for row in common_end(seq, [seq * MS, seq * MS + 3 * MS])]
    unseen = {"rank": 1, "seq": 9, "start_ns": 20 * MS, "end_ns": None, "source": "host_issue"}
    span = {"rank": 1, "kind": "forward", "start_ns": 5 * MS, "dur_ns": 7, "cpu_ns": 3}
    trace = trace_of(collective=[*rows, unseen], span=[span], memory=[{"rank": 1}], ranks=(0, 1))
    aligned = align(trace)
    before, after = (one.frame("collective") for one in (trace, aligned))
    moved = ["issue_ns", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns"]
    assert before.drop(columns=moved).equals(after.drop(columns=moved))
    change = (after[moved] - before[moved])[before["rank"] == 1].stack().dropna().unique()
    assert change.tolist() == [-3 * MS]
    assert after["end_ns"].isna().tolist() == before["end_ns"].isna().tolist()
    (moved_span,) = aligned.tables["span"].to_pylist()
    assert moved_span["start_ns"] == 2 * MS
    assert (moved_span["dur_ns"], moved_span["cpu_ns"]) == (7, 3)
    assert aligned.frame("memory")["time_ns"].tolist() == [-3 * MS]
    for name, table in aligned.tables.items():
        assert table.schema.equals(TABLES[name].arrow_schema())


def test_times_of_any_size_do_not_break_it():
    """A damaged file would end in a traceback of an overflow."""
    rng = np.random.default_rng(5)
    edge = 2**63 - 1
    rows = []
    for seq in range(40):
        ends = [int(rng.choice([-edge, 0, edge, 10**18])), int(rng.choice([-edge, 0, edge]))]
        rows += [
            {"rank": rank, "seq": seq, "start_ns": 0, "end_ns": end}
            for rank, end in enumerate(ends)
        ]
    align(trace_of(collective=rows, ranks=(0, 1)))


def test_a_corrected_wall_clock_is_a_finding(job):
    """A host whose time daemon is dead would stay unnoticed, since all else is repaired."""
    foreign = replace(shifted(job, {5}, -20 * MS), origin="kineto")
    skews = [f for f in diagnose(align(foreign)).findings if f.kind == "clock_skew"]
    assert [(f.severity, f.where) for f in skews] == [("info", {"ranks": [5]})]
    assert skews[0].evidence[0].values["offset_ns"] == pytest.approx(20 * MS, abs=500)


@pytest.mark.parametrize("first_step", [5, 11])
def test_a_clock_that_was_set_in_mid_capture_is_still_reported(job, first_step):
    """A jump would be corrected as if it were an offset, and half of the capture be believed."""
    later = shifted(job, {5}, 40 * MS)
    tables = {}
    for name, table in job.tables.items():
        frame = job.frame(name)
        if "step" in frame:
            frame = frame.where(frame["step"] < first_step, later.frame(name))
            table = TABLES[name].conform(pa.Table.from_pandas(frame, preserve_index=False))
        tables[name] = table
    result = diagnose(align(replace(job, tables=tables, _frames={})))
    (skew,) = (f for f in result.findings if f.kind == "clock_skew")
    assert skew.severity == "critical"
    assert 5 in skew.where["ranks"]
    assert result.causes == ()


def test_data_that_nobody_waits_for_does_not_move_a_clock():
    """Half of the time for which messages lie there would be taken for an offset of the clock."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=2, vpp=2),
        schedule=ScheduleKind.ZB_V,
        microbatches=8,
        steps=6,
        ranks_per_host=4,
        costs=Costs(pp_ns=100_000),
        faults=(
            Fault(kind=FaultKind.HEAVY_EMBEDDING, extra_ms=3.0),
            Fault(kind=FaultKind.CLOCK_SKEW, host=1, offset_ms=30.0),
        ),
    )
    (row,) = estimate_offsets(generate(job)[0]).to_pylist()
    assert row["error_ns"] > 1e6
    assert abs(row["offset_ns"]) == pytest.approx(30e6, abs=0.2e6)
