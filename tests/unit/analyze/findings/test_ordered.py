"""Each rule fires on its own fault, with its place and its cost, and stays silent otherwise."""

from dataclasses import replace

import pytest
from tests.messages import of_code, values_of
from tests.tables import host_row, trace_of

from meshscope.analyze.account.kernels.idle import NOTHING
from meshscope.analyze.account.kernels.table import kernel_report
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.ordered import by_size, is_by_design, place
from meshscope.analyze.findings.rules.capture import missing_ranks
from meshscope.analyze.findings.rules.grading import severity
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import FindingKind, Severity

MS = 1_000_000


def findings_of(**rows):
    """Return the findings of a literal capture, by kind."""
    return {str(finding.kind): finding for finding in diagnose(trace_of(**rows)).findings}


def two_ranks(**rows):
    """Return findings of two ranks that compute 60 ms of 100 and reduce for 5."""
    base = {
        "step": [{"rank": rank, "dur_ns": 100 * MS} for rank in (0, 1)],
        "span": [
            {"rank": rank, "kind": "forward", "start_ns": 0, "dur_ns": 60 * MS} for rank in (0, 1)
        ],
        "collective": [host_row(60 * MS, 61 * MS, rank=rank) for rank in (0, 1)],
    }
    return findings_of(**{name: base.get(name, []) + rows.get(name, []) for name in {*base, *rows}})


@pytest.mark.parametrize(
    ("cost", "grade"),
    [(None, "info"), (0.0199, "info"), (0.02, "warning"), (0.0499, "warning"), (0.05, "critical")],
)
def test_severity_thresholds(cost, grade):
    """The order of the report would change."""
    assert severity(cost) == grade


@pytest.mark.parametrize(
    ("span", "kind"),
    [
        ("data_load", "data_stall"),
        ("gc", "gc_pause"),
        ("checkpoint", "checkpoint_stall"),
        ("host_blocked", "host_stall"),
    ],
)
def test_host_stalls(span, kind):
    """Time of the host would have no name and no rank."""
    stall = {"rank": 1, "kind": span, "start_ns": 70 * MS, "dur_ns": 10 * MS}
    found = two_ranks(span=[stall])[kind]
    assert found.where == {"rank": 1, "steps": [0, 0]}
    # Ten of 100 ms on one of two ranks; what they are worth to the step needs more than one.
    assert found.cost_frac >= 0.05
    assert found.removal_gain_frac is not None
    short = {**stall, "dur_ns": MS // 2}
    assert kind not in two_ranks(span=[short])


def test_exposed_transfer():
    """Communication that nothing hides would be free."""
    slow = [host_row(61 * MS, 71 * MS, rank=rank, seq=1, size_bytes=9) for rank in (0, 1)]
    found = two_ranks(collective=slow)["exposed_communication"]
    assert found.where == {"axis": "dp", "steps": [0, 0]}
    assert found.cost_frac == pytest.approx(0.11)


def idle_devices():
    """Return the findings of two devices that work for 50 of 100 ms."""
    kernels = [{"rank": rank, "start_ns": 0, "dur_ns": 50 * MS} for rank in (0, 1)]
    step = [{"rank": rank, "dur_ns": 100 * MS} for rank in (0, 1)]
    collective = [{"rank": rank, "start_ns": 50 * MS, "end_ns": 51 * MS} for rank in (0, 1)]
    return findings_of(step=step, kernel=kernels, collective=collective)


def test_an_idle_device_is_a_stall_and_of_unknown_reason_without_launches():
    """Fails when an idle GPU looks like a short step, or is called launch-bound by a guess."""
    found = idle_devices()
    assert found["host_stall"].cost_frac == pytest.approx(0.49)
    assert of_code(found["host_stall"].evidence, "idle.unknown_meaning")
    assert "launch_bound" not in found
    assert "host_stall" not in two_ranks()


def test_only_the_time_of_launching_is_launch_bound():
    """Fails when the finding and ``meshscope kernels`` mean different times by launch-bound."""
    starts = (0, 40, 60)
    kernels = [
        {"rank": rank, "start_ns": at * MS, "dur_ns": 20 * MS, "launch_ns": (at - 2) * MS}
        for rank in (0, 1)
        for at in starts
    ]
    # Launches without a pause of a millisecond in the operator, whose work hardly takes time.
    kernels += [
        {"rank": rank, "start_ns": at * MS // 2, "dur_ns": 1000, "launch_ns": at * MS // 2}
        for rank in (0, 1)
        for at in range(61, 76)
    ]
    ops = [
        {"rank": rank, "op_id": 0, "name_id": 0, "start_ns": 30 * MS, "dur_ns": 10 * MS}
        for rank in (0, 1)
    ]
    step = [{"rank": rank, "dur_ns": 100 * MS} for rank in (0, 1)]
    waits = [
        {"rank": rank, "name_id": 1, "start_ns": 10 * MS, "dur_ns": 16 * MS} for rank in (0, 1)
    ]
    names = [
        {"rank": rank, "name_id": at, "name": name}
        for rank in (0, 1)
        for at, name in enumerate(("aten::mm", "cudaStreamSynchronize"))
    ]
    trace = trace_of(step=step, kernel=kernels, op=ops, runtime_call=waits, name=names)
    findings = diagnose(trace).findings
    found = {finding.cause: finding for finding in findings if finding.cause}
    bound = kernel_report(trace).ranks["launch_bound_frac"]
    assert bound.tolist() == [pytest.approx(0.1, abs=0.001)] * 2
    assert found["launching"].cost_frac == pytest.approx(0.08, abs=0.001)
    assert "8.0 % of the step on every rank" in map(str, found["launching"].evidence)
    stalls = [finding.cost_frac for finding in findings if finding.kind == "host_stall"]
    assert sum(stalls) == pytest.approx(0.32, abs=0.001)
    waits = found["synchronise"].evidence
    assert any("up to 10.5 % of the step. Most: cudaStreamSynchronize" in str(one) for one in waits)


def test_memory_of_one_stage():
    """A stage that is about to run out of memory would be found by the crash."""
    samples = [
        {"rank": 0, "peak_bytes": 95, "capacity_bytes": 100},
        {"rank": 1, "peak_bytes": 50, "capacity_bytes": 100},
    ]
    found = two_ranks(memory=samples)
    assert "memory_headroom" in found
    layout = ParallelLayout(pp=2)
    rows = {"step": [{"rank": rank, "dur_ns": 100 * MS} for rank in (0, 1)]}
    staged = findings_of(layout=layout, memory=samples, **rows)
    assert staged["memory_imbalance"].where == {"stage": 0}
    assert "1.90 x" in str(staged["memory_imbalance"].claim)


def test_missing_ranks_are_named():
    """A straggler that is not in the capture would be called a bubble."""
    found = diagnose(
        trace_of(
            run={"world_size": 4},
            step=[{"rank": rank, "dur_ns": 100} for rank in (0, 2)],
        )
    ).findings
    assert [f.where["ranks"] for f in found if f.kind == "missing_data"] == [[1, 3]]


@pytest.mark.parametrize(
    ("world", "ranks", "words"),
    [
        (60, range(0, 60, 2), "ranks 1, 3, 5, 7, 9, 11, 13 and 23 more"),
        (60, range(4, 60), "ranks 0-3"),
        (9000, [0], "ranks 1-1024 and 7,975 more"),
    ],
)
def test_missing_ranks_are_counted(world, ranks, words):
    """Fails when those that are named and those that are not are no longer all that are missing."""
    steps = [{"rank": rank, "dur_ns": 100} for rank in ranks]
    (finding,) = missing_ranks(trace_of(run={"world_size": world}, step=steps))
    assert list(map(str, finding.evidence)) == [f"Missing: {words}"]
    assert len(finding.where.get("ranks", range(world - 1))) == world - len(ranks)


def test_a_healthy_pair_has_no_finding():
    """Noise in the report would hide what matters."""
    assert two_ranks() == {}


def test_every_finding_can_be_acted_on():
    """Fails when a finding lacks evidence or a remedy, and so tells nobody what to do."""
    stall = {"rank": 1, "kind": "gc", "start_ns": 70 * MS, "dur_ns": 10 * MS}
    findings = two_ranks(span=[stall])
    assert findings
    for finding in findings.values():
        assert finding.evidence
        assert finding.remedy
        assert 0 < finding.confidence <= 1


def stages_that_compute(*dur_ms, **job):
    """Return the findings of stages that compute so long of 100 ms, without communication."""
    spans = [
        {"rank": stage, "stage": stage, "kind": "forward", "start_ns": 0, "dur_ns": ms * MS}
        for stage, ms in enumerate(dur_ms)
    ]
    steps = [{"rank": stage, "dur_ns": 100 * MS} for stage in range(len(dur_ms))]
    layout = ParallelLayout(pp=len(dur_ms))
    return findings_of(**{"layout": layout, "step": steps, "span": spans} | job)


@pytest.mark.parametrize(("dur_ms", "heavy"), [((60, 60, 60, 72), 3), ((66, 60, 58, 60), 0)])
def test_a_heavy_stage_is_named_without_a_replay(dur_ms, heavy):
    """A capture of compute alone would say nothing about its stages, or invent a cost."""
    found = stages_that_compute(*dur_ms)["stage_imbalance"]
    assert found.where == {"stage": heavy, "steps": [0, 0]}
    assert found.claim.values["longer"] == pytest.approx(max(dur_ms) / 60 - 1)
    assert (found.cost_frac, found.removal_gain_frac) == (None, None)
    excess = {"excess_ns": (max(dur_ms) - 60) * MS, "share": (max(dur_ms) - 60) / 100}
    assert values_of(found.evidence, "stage.excess") == pytest.approx(excess)
    assert of_code(found.evidence, "stage.no_replay")


def test_stages_that_differ_by_noise_are_not_blamed_without_a_replay():
    """Every pipeline would have a heavy stage."""
    assert "stage_imbalance" not in stages_that_compute(60, 61, 62, 60)
    assert "stage_imbalance" not in stages_that_compute(60, 90, layout=None)
    assert "stage_imbalance" not in stages_that_compute(60)


def test_idle_shares_of_stages_without_a_replay():
    """The idle time of each stage would be lost where nobody recorded the waiting."""
    run = {"schedule": "1f1b", "microbatches": 2}
    found = stages_that_compute(60, 80, run=run)["pipeline_bubble"]
    assert found.claim.values["idle"] == pytest.approx(0.3)
    assert found.cost_frac is None
    idle = "Idle in the only analysed step: 40.0 % on stage 0 and 20.0 % on stage 1"
    assert str(found.evidence[0]) == idle
    assert values_of(found.evidence, "pipeline_bubble.ideal")["ideal"] == pytest.approx(1 / 3)
    assert "pipeline_bubble" not in stages_that_compute(98, 96)
    assert "pipeline_bubble" not in stages_that_compute(60)


def test_recorded_waiting_is_not_reported_twice():
    """The same imbalance would appear with a cost and without one."""
    rows = [host_row(ms * MS, 80 * MS, rank=stage, axis="pp") for stage, ms in enumerate((60, 79))]
    found = stages_that_compute(60, 79, collective=rows)
    assert "compute nothing" not in str(found)


def test_recomputation_has_a_price():
    """Activation checkpointing would look like a slow backward pass."""
    again = {"rank": 1, "kind": "recompute", "start_ns": 70 * MS, "dur_ns": 20 * MS}
    found = two_ranks(span=[again])["recompute"]
    assert found.cost_frac == pytest.approx(0.10)
    assert "recompute" not in two_ranks(span=[{**again, "dur_ns": 4 * MS}])


def test_a_standstill_comes_before_what_costs_time():
    """Fails when who reads the first finding of a job that hung reads of its pipeline bubble."""
    (stall,) = idle_devices().values()
    costly = replace(stall, severity=Severity.CRITICAL)
    hang = replace(costly, kind=FindingKind.HANG, severity=Severity.WARNING)
    doubtful = replace(hang, severity=Severity.INFO)
    assert sorted([doubtful, costly, hang], key=place) == [hang, costly, doubtful]


@pytest.mark.parametrize(
    ("kind", "where", "is_reported"),
    [
        (FindingKind.SLOW_WIRE, {"axis": "tp"}, True),
        (FindingKind.SLOW_WIRE, {"axis": "pp", "link": "5<->9"}, False),
        (FindingKind.SLOW_WIRE, {"axis": "pp", "steps": [2, 3]}, False),
        (FindingKind.HOST_STALL, {}, True),
        (FindingKind.HOST_STALL, {"rank": 3}, False),
        (FindingKind.PIPELINE_BUBBLE, {}, True),
        (FindingKind.STRAGGLER_RANK, {"rank": 3}, False),
    ],
)
def test_what_is_alike_everywhere_comes_after_what_is_broken(kind, where, is_reported):
    """A network that varies a little everywhere would be put before the link that is broken."""
    (any_finding,) = idle_devices().values()
    assert is_by_design(replace(any_finding, kind=kind, where=where)) is is_reported


@pytest.mark.parametrize(
    ("idle", "data", "where", "cause", "is_first"),
    [
        (0.668, 0.141, {}, NOTHING, True),
        (0.141, 0.668, {}, NOTHING, False),
        (0.668, 0.141, {"rank": 3}, NOTHING, False),
        (0.668, 0.141, {}, "unknown", False),
        (0.04, 0.141, {}, NOTHING, False),
    ],
    ids=["longer", "shorter", "a stall of one rank", "of unknown cause", "of little weight"],
)
def test_idle_devices_and_a_stall_alike_stand_by_their_size(idle, data, where, cause, is_first):
    """Fails when 14 % of data loading is to be mended before 67 % of idle time that it does not explain."""
    (any_finding,) = idle_devices().values()
    design = replace(any_finding, where={}, cost_frac=idle, severity=severity(idle), cause=cause)
    stall = replace(
        any_finding, kind=FindingKind.DATA_STALL, where=where, cost_frac=data, cause=None,
        severity=severity(data),
    )  # fmt: skip
    transfers = replace(design, kind=FindingKind.EXPOSED_COMMUNICATION, cause=None, cost_frac=0.9)
    found = by_size(sorted([transfers, stall, design], key=place))
    assert (found.index(design) < found.index(stall)) is is_first
    assert found.index(stall) < found.index(transfers) or severity(idle) != severity(data)
