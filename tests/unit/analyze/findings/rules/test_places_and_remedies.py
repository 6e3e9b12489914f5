"""Findings of simulated jobs name the steps, the ranks and the remedy of their own cause."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.messages import of_code, values_of
from tests.synthetic import MS, Job, capture_of, programs

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.findings.rules.held_stages import heavy_stage
from meshscope.analyze.output.json import diagnosis_to_json
from meshscope.analyze.output.straggler_tables import find_stragglers
from meshscope.analyze.output.text import to_text
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

GRID = ParallelLayout(pp=2, dp=4)


def trace_with(*faults, layout=GRID, steps=20, **job):
    """Return the capture of a simulated job with 2 % of jitter."""
    job = {"schedule": ScheduleKind.ONE_F_ONE_B, "jitter_cv": 0.02} | job
    faults = tuple(map(parse_fault, faults))
    return generate(SyntheticJob(layout=layout, steps=steps, faults=faults, **job))[0]


def findings_of(trace):
    """Return the findings by kind, the first of each."""
    return {str(found.kind): found for found in reversed(diagnose(trace).findings)}


def without(trace, name):
    """Return the capture without the rows of one table."""
    return replace(trace, tables={**trace.tables, name: trace.tables[name].slice(0, 0)})


MODEL = {
    "model": '{"num_layers": 8, "hidden_size": 64, "num_heads": 4, "vocab_size": 512, "seq_len": 32}'
}
"""A run that is known to train a language model."""


@pytest.mark.parametrize(
    ("faults", "kind", "where", "claim"),
    [
        (
            ["data_stall:rank=3,extra_ms=100,first_step=5,last_step=5"],
            "data_stall",
            {"rank": 3, "steps": [5, 5], "host": "host0000"},
            ", all of it in step 5",
        ),
        (
            [
                "gc_pause:rank=2,extra_ms=30,first_step=3,last_step=3",
                "gc_pause:rank=5,extra_ms=30,first_step=9,last_step=9",
                "gc_pause:rank=1,extra_ms=30,first_step=12,last_step=12",
            ],
            "gc_pause",
            {"steps": [3, 12]},
            "all of it in steps 3, 9 and 12",
        ),
        (
            ["checkpoint:extra_ms=50,first_step=4,every=5"],
            "checkpoint_stall",
            {"steps": [4, 19]},
            "all of it in every 5th step, 4 to 19",
        ),
        (
            ["data_stall:extra_ms=10"],
            "data_stall",
            {"steps": [0, 19]},
            "% of the step on waiting for data",
        ),
    ],
    ids=["one step", "three steps", "every fifth", "always"],
)
def test_a_stall_names_its_steps(faults, kind, where, claim):
    """Fails when a stall in one step reads like one in every step."""
    found = findings_of(trace_with(*faults))[kind]
    assert found.where == where
    assert str(found.claim).endswith(claim)
    # Where a rank has it, the others wait.
    assert bool(of_code(found.evidence, "stall.others_wait")) == ("rank" in where)


def test_a_stall_of_all_ranks_names_none_without_a_replay():
    """Fails when a rank is made up for a stall that all have, because one rank was not captured."""
    lost = "missing_rank:rank=3"
    every = findings_of(trace_with(lost, "data_stall:extra_ms=10"))["data_stall"]
    assert "rank" not in every.where
    assert every.evidence[0].code == "stall.time_alike"
    one = findings_of(trace_with(lost, "data_stall:rank=6,extra_ms=10"))["data_stall"]
    assert one.where["rank"] == 6
    assert (one.claim.code, one.claim.values["rank"]) == ("stall.claim_of_one", 6)
    assert "rank 6 alone" in str(one.remedy)


def test_a_link_that_is_slow_at_times_says_when():
    """Fails when people look for errors of a network in the wrong hours."""
    fault = "slow_link:axis=pp,rank=5,peer=9,extra_ms=3,first_step=4,last_step=10"
    trace = trace_with(fault, layout=ParallelLayout(pp=4, dp=4))
    found = findings_of(trace)["slow_link"]
    assert found.where["steps"] == [4, 10]
    assert str(found.claim).endswith("as on the others in steps 4-10")


def test_a_stage_that_is_heavy_at_times_is_reported_for_these_steps():
    """Fails when layers are moved for what comes and goes, or the excess is spread over all steps."""
    layout = ParallelLayout(pp=4, dp=2)
    always = findings_of(trace_with("slow_stage:stage=2,factor=1.3", layout=layout))
    assert always["stage_imbalance"].where == {"stage": 2, "steps": [0, 19]}
    assert str(always["stage_imbalance"].claim).startswith("Stage 2 computes ")
    assert str(always["stage_imbalance"].remedy) == "Move layers away from stage 2"
    fault = "slow_stage:stage=2,factor=1.5,first_step=5,last_step=9"
    found = findings_of(trace_with(fault, layout=layout))["stage_imbalance"]
    assert found.where == {"stage": 2, "steps": [5, 9]}
    assert found.claim.values["longer"] == pytest.approx(0.485, abs=0.01)
    assert str(found.claim).startswith("Stage 2 computes 4")
    assert str(found.claim).endswith(" % longer than the other stages in steps 5-9")
    assert "Move layers" not in str(found.remedy)


@pytest.mark.parametrize(
    ("schedule", "stage", "holds"),
    [
        (ScheduleKind.ZB_V, 0, "stage.holds_both"),
        (ScheduleKind.INTERLEAVED, 3, "stage.holds_head"),
    ],
)
def test_the_output_head_is_where_the_schedule_puts_the_last_chunk(schedule, stage, holds):
    """Fails when the head of a V-shaped schedule is taken for the embedding."""
    layout = ParallelLayout(pp=4, dp=2, vpp=2)
    shape = {"layout": layout, "schedule": schedule, "microbatches": 8, "steps": 4}
    trace = trace_with("heavy_head:extra_ms=3", **shape)
    unknown = findings_of(trace)["stage_imbalance"]
    assert "output head" not in f"{unknown.evidence} {unknown.remedy}"
    found = findings_of(replace(trace, run=trace.run | MODEL))["stage_imbalance"]
    assert found.where["stage"] == stage
    assert found.evidence[0].code == holds
    heavy = values_of(found.evidence, "stage.heavy")
    assert (heavy["stage"], heavy["chunk"]) == (7, 1)
    assert str(found.remedy).startswith("Move layers away from stage 7, or split the output head")


def test_the_edge_stages_of_an_unknown_order_are_not_called_by_what_they_hold():
    """Fails when an order that may be a V has its head on the last stage."""
    layout = ParallelLayout(pp=4, dp=2, vpp=2)
    shape = {"layout": layout, "schedule": ScheduleKind.ZB_V, "microbatches": 8, "steps": 4}
    trace = trace_with("heavy_head:extra_ms=3", **shape)
    said = {name: value for name, value in trace.run.items() if name != "schedule"} | MODEL
    found = findings_of(replace(trace, run=said))["stage_imbalance"]
    assert str(found.claim).startswith("Pipeline rank 0 (stages 0 and 7) computes")
    assert found.evidence[0].code == "stage.holds_embedding"
    v_shaped = findings_of(replace(trace, run=said | {"schedule": "dualpipe-v"}))
    assert v_shaped["stage_imbalance"].evidence[0].code == "stage.holds_both"


def slowed(trace, stage, factor):
    """Return a trace whose passes of one stage of the model took longer at the cost of nobody's step."""
    spans = trace.frame("span")
    is_slow = (spans["stage"] == stage) & spans["kind"].isin(["forward", "backward"])
    dur_ns = spans["dur_ns"].where(~is_slow, (spans["dur_ns"] * factor).astype("int64"))
    table = trace.tables["span"]
    at = table.column_names.index("dur_ns")
    column = pa.array(dur_ns.to_numpy(), table.schema.field(at).type)
    return trace.with_tables({"span": table.set_column(at, table.schema.field(at), column)})


def test_of_several_stages_of_a_rank_the_heavy_one_is_named():
    """Fails when layers are to move away from a stage that is not slow, because its rank has another."""
    layout = ParallelLayout(pp=4, dp=2, vpp=2)
    shape = {"layout": layout, "schedule": ScheduleKind.INTERLEAVED, "microbatches": 8, "steps": 4}
    trace = trace_with("slow_stage:stage=2,factor=1.3", **shape)
    heavy = heavy_stage(measure(trace), 2)
    assert (heavy.stage, heavy.chunk, heavy.is_last) == (2, 0, False)
    other = heavy_stage(measure(slowed(trace, 6, 2.0)), 2)
    assert (other.stage, other.chunk) == (6, 1)
    assert str(findings_of(trace)["stage_imbalance"].remedy) == "Move layers away from stage 2"
    found = findings_of(slowed(trace, 6, 1.3))["stage_imbalance"]
    assert str(found.claim).startswith("Pipeline rank 2 (stages 2 and 6) computes ")
    assert found.claim.code == "stage.claim"
    assert str(found.remedy) == "Move layers away from pipeline rank 2 (stages 2 and 6)"


def test_a_loss_with_a_span_of_its_own_makes_its_stage_no_lighter():
    """Fails when the work of a heavy stage is moved to the last one, whose passes are two spans each."""
    layout = ParallelLayout(pp=2, dp=2, vpp=2)
    shape = {"layout": layout, "schedule": ScheduleKind.INTERLEAVED, "microbatches": 4, "steps": 4}
    trace = trace_with("slow_stage:stage=1,factor=1.5", **shape)
    rows = trace.tables["span"].to_pylist()
    last = [row for row in rows if row["stage"] == 3 and row["kind"] == "forward"]
    for row in last:
        half = row["dur_ns"] // 2
        rows.append({**row, "start_ns": row["start_ns"] + half, "dur_ns": row["dur_ns"] - half})
        row["dur_ns"] = half
    table = trace.tables["span"]
    apart = trace.with_tables({"span": pa.Table.from_pylist(rows, table.schema)})
    costs = [
        {str(cause.where): cause.share_frac for cause in diagnose(one).causes}
        for one in (trace, apart)
    ]
    assert costs[1] == pytest.approx(costs[0], abs=1e-3)


@pytest.mark.parametrize(
    ("schedule", "vpp", "remedy"),
    [
        (
            "1f1b",
            1,
            "more microbatches per step, several chunks per rank or a zero-bubble schedule",
        ),
        ("interleaved-1f1b", 2, "more microbatches per step or a zero-bubble schedule"),
        ("zb-h1", 1, "more microbatches per step or several chunks per rank"),
    ],
)
def test_a_bubble_is_not_remedied_by_what_the_schedule_does(schedule, vpp, remedy):
    """Fails when a zero-bubble schedule is advised to become one."""
    layout = ParallelLayout(pp=4, dp=2, vpp=vpp)
    trace = trace_with(layout=layout, schedule=ScheduleKind(schedule), microbatches=8, steps=4)
    assert str(findings_of(trace)["pipeline_bubble"].remedy) == f"Consider {remedy}"


@pytest.mark.parametrize("stall", ["gc_pause", "data_stall"])
def test_the_remedy_of_a_slow_rank_is_not_that_of_its_stalls(stall):
    """Fails when a slow device gets the remedy of the stall that its host has besides."""
    trace = trace_with("slow_rank:rank=5,factor=1.2", f"{stall}:rank=5,extra_ms=10", steps=10)
    found = findings_of(trace)["straggler_rank"]
    assert found.where["rank"] == 5
    assert found.remedy.code == "straggler_rank.remedy"
    assert not any("gc" in str(line) or "data" in str(line) for line in found.evidence)


def test_ranks_of_a_host_that_spans_stages_are_all_named():
    """Fails when one of four slow ranks is to be swapped, or a stage is named that half are not in."""
    layout = ParallelLayout(pp=2, dp=2, tp=2, order="dp-pp-cp-tp")
    trace = trace_with("slow_rank:host=1,factor=1.3", layout=layout, ranks_per_host=4)
    found = findings_of(trace)["straggler_rank"]
    assert found.where["ranks"] == [4, 5, 6, 7]
    assert "stage" not in found.where
    assert "host0001 (ranks 4, 5, 6 and 7)" in str(found.remedy)
    members = values_of(found.evidence, "straggler_rank.members")["members"]
    assert sorted(member.values["rank"] for member in members) == [4, 5, 6, 7]
    table = find_stragglers(diagnose(trace)).ranks
    assert sorted(table.loc[table["named"], "rank"]) == [4, 5, 6, 7]


def test_a_slow_tensor_parallel_group_has_its_stage_and_a_remedy_of_its_own():
    """Fails when the members of a slow group are to be swapped one by one."""
    layout = ParallelLayout(pp=2, dp=4, tp=2)
    trace = trace_with("slow_rank:pp=1,dp=2,factor=1.3", layout=layout)
    found = findings_of(trace)["straggler_rank"]
    assert (found.where["ranks"], found.where["stage"]) == ([12, 13], 1)
    assert "tensor-parallel group of ranks 12 and 13" in str(found.remedy)


def test_a_rank_without_peers_is_slow_against_what_was_expected():
    """Fails when a claim counts no peers."""
    fault = "slow_rank:rank=1,factor=1.3,first_step=10"
    found = findings_of(trace_with(fault, layout=ParallelLayout(pp=2), steps=40))["straggler_rank"]
    assert str(found.claim).endswith(" % slower than expected in steps 10-39")
    assert not any("peers" in str(line) for line in found.evidence)


def test_a_rank_whose_computing_was_not_recorded_is_not_called_idle():
    """Fails when a slow device is looked for on the host because no span was recorded."""
    trace = trace_with("slow_rank:rank=5,factor=1.3", steps=5)
    found = findings_of(without(trace, "span"))["straggler_rank"]
    assert found.where["rank"] == 5
    assert found.remedy.code == "straggler_rank.remedy_not_recorded"


def test_a_rank_that_idles_between_its_passes_is_late_without_computing():
    """Fails when a device is swapped for a host that launches too late."""
    job = Job(layout=ParallelLayout(dp=4), steps=6)
    operations = programs(job, lambda kind, *_: {"forward": 10 * MS, "backward": 20 * MS}[kind])
    late = [[("idle", 4 * MS), op] if op[0] == "work" else [op] for op in operations[2]]
    operations[2] = [op for ops in late for op in ops]
    found = findings_of(capture_of(job, operations))["straggler_rank"]
    assert found.remedy.code == "straggler_rank.remedy_not_computing"
    assert str(found.remedy).startswith("Check the host of rank 2 before its GPU")


def test_a_rank_that_is_late_between_its_passes_has_the_steps_in_which_it_is():
    """Fails when chance in the passes of a rank tells the steps in which its host holds it up."""
    job = Job(layout=ParallelLayout(dp=2), microbatches=1, steps=20)
    slow = {5, 6, 7, 8, 9, 15, 16, 17, 18, 19}

    def work(kind, rank, step, _):
        return (10 if kind == "forward" else 20) * MS + (3 * MS if (rank, step) == (1, 2) else 0)

    operations = programs(job, work)
    late = [
        [("idle", 40 * MS), op]
        if op[0] == "work" and op[3] == "forward" and op[2] in slow
        else [op]
        for op in operations[1]
    ]
    operations[1] = [op for ops in late for op in ops]
    found = findings_of(capture_of(job, operations))["straggler_rank"]
    assert found.where["steps"] == [5, 19]
    slow = "125.0 % slower than its 1 peer in steps 5-9 and 15-19"
    assert str(found.claim).endswith(slow)
    said = [str(fact) for fact in found.evidence]
    outside = (
        "Late outside forward and backward: 40.0 ms longer than its peers in steps 5-9 and 15-19"
    )
    assert outside in said
    elsewhere = values_of(found.evidence, "straggler_rank.late_elsewhere")
    assert elsewhere["longer_ns"] == pytest.approx(0.67 * MS, abs=0.005 * MS)
    assert any(fact.startswith("Its 10 slow steps are 40.0 ms longer") for fact in said)


def test_a_rank_that_accumulates_more_microbatches_has_more_to_do():
    """Fails when a device is swapped for the microbatches that its rank was given."""
    job = Job(layout=ParallelLayout(dp=4), microbatches=2, steps=6)
    operations = programs(job, lambda kind, *_: {"forward": 10 * MS, "backward": 20 * MS}[kind])
    twice = [[op, (*op[:5], 2)] if op[0] == "work" and op[5] == 1 else [op] for op in operations[2]]
    operations[2] = [op for ops in twice for op in ops]
    result = diagnose(capture_of(job, operations))
    found = next(own for own in result.findings if own.kind == "straggler_rank")
    assert found.where["rank"] == 2
    passes = values_of(found.evidence, "straggler_rank.more_passes")
    assert passes == {"own": 3, "peers": 2}
    assert str(found.remedy).startswith("Give rank 2 as many microbatches")


def test_a_capture_without_step_marks_shows_no_step():
    """Fails when the number of the one window of such a capture leaks into results or reports."""
    result = diagnose(without(trace_with("slow_rank:rank=5,factor=1.3", steps=5), "step"))
    assert "straggler_rank" in {finding.kind for finding in result.findings}
    assert all("steps" not in finding.where for finding in result.findings)
    written = diagnosis_to_json(result)["run"]
    assert (written["first_step"], written["last_step"]) == (None, None)
    assert "no step marks" in to_text(result)
    assert "-1" not in to_text(result).split("Where the step")[0]
    assert find_stragglers(result).steps.empty


def test_every_finding_about_time_has_its_steps():
    """Fails when a finding of a job with several faults does not say which steps it is of."""
    faults = ["data_stall:extra_ms=5", "sequence:cv=0.3", "slow_stage:stage=1,factor=1.2"]
    steps = {
        found.kind: found.where.get("steps") for found in diagnose(trace_with(*faults)).findings
    }
    assert steps.keys() >= {"data_stall", "stage_imbalance"}
    assert all(reported == [0, 19] for reported in steps.values()), steps
