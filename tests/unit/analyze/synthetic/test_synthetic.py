"""Synthetic jobs: faults as they are written, hangs, hidden stragglers, overlap, run directories."""

import json
from dataclasses import replace

import pytest
from tests.texts import texts
from typer.testing import CliRunner

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.synthetic import (
    Costs,
    Fault,
    FaultKind,
    SyntheticJob,
    generate,
    make_simulation,
    parse_fault,
    record,
    truth_of,
    write_run,
)
from meshscope.analyze.synthetic.__main__ import parse_costs, parse_layout
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)


def test_a_fault_is_read_back_as_it_is_written():
    """A fault in a report would not be the one that was simulated."""
    fault = Fault(kind=FaultKind.SLOW_LINK, axis="pp", rank=0, peer=4, factor=3.0, first_step=2)
    assert parse_fault(fault.text()) == fault


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("slow", "not a kind"),
        ("slow_rank:rank=1", "factor must be given"),
        ("slow_rank:rank=x,factor=2", "not a number"),
        ("slow_rank:rank=1,factor=0", "above 0"),
        ("slow_rank:rank=1,factor=2,cv=1", "does not apply"),
        ("slow_rank:speed=2", "not a key"),
        ("gc_pause:extra_ms=-1", "negative"),
    ],
)
def test_wrong_faults_are_refused(text, part):
    """A typing error would simulate another fault, or none."""
    with pytest.raises(ConfigError, match=part):
        parse_fault(text)


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"faults": (parse_fault("slow_rank:rank=8,factor=2"),)}, "outside 0..7"),
        ({"faults": (parse_fault("slow_link:axis=x,factor=2"),)}, "not an axis"),
        ({"microbatches": 0}, "at least 1"),
        ({"layers": (1, 2, 3)}, "the job has 2"),
        ({"jitter_cv": -0.1}, "negative"),
        ({"costs": Costs(pp_ns=-1)}, "negative"),
        ({"layout": ParallelLayout(dp=3, ep=2)}, "does not divide"),
    ],
)
def test_jobs_that_cannot_be_are_refused(settings, part):
    """A fault outside of the job would be simulated as no fault."""
    with pytest.raises(ConfigError, match=part):
        SyntheticJob(**{"layout": LAYOUT} | settings)


def test_a_straggler_behind_a_bigger_one_has_no_removal_gain():
    """Fixing the smaller one would be promised to help."""
    small, big = (parse_fault(f"slow_rank:rank={r},factor={f}") for r, f in ((0, 1.2), (1, 1.5)))
    truth = truth_of(
        SyntheticJob(layout=ParallelLayout(dp=4), costs=Costs(optimizer_ns=0), faults=(small, big))
    )
    first, second = truth.faults
    assert first.removal_gain_ns == 0
    assert first.alone_ns > 0
    assert truth.joint_ns == second.alone_ns > second.removal_gain_ns > 0


def test_a_hidden_reduction_costs_nothing():
    """Overlapped communication would be billed as if it were exposed."""
    plain = SyntheticJob(
        layout=ParallelLayout(dp=2), segments=4, dp_buckets=4, overlap_dp=True, steps=1
    )
    free, exposed = (
        SyntheticJob(
            layout=plain.layout, segments=4, dp_buckets=4, overlap_dp=overlap, steps=1, costs=costs
        )
        for overlap, costs in ((True, Costs(dp_ns=0)), (False, Costs()))
    )
    bucket_ns = plain.costs.dp_ns // 4
    step_ns = truth_of(plain).step_time_ns
    assert step_ns == truth_of(free).step_time_ns + bucket_ns
    assert truth_of(exposed).step_time_ns == step_ns + 3 * bucket_ns


def test_a_hang_names_who_did_not_arrive():
    """A job that hangs would be diagnosed as slow, or its victims as the cause."""
    job = SyntheticJob(
        layout=LAYOUT, steps=4, faults=(parse_fault("hang:rank=5,first_step=2,microbatch=3"),)
    )
    trace, truth = generate(job)
    assert truth.step_time_ns is None
    assert len(truth.step_ends_ns) == 2
    assert trace.frame("step")["step"].max() == 1
    progress = trace.frame("progress").set_index(["group_id", "rank"])["issued_seq"]
    assert progress["tp-4", 5] == progress["tp-4", 4] - 1
    hang = [finding for finding in diagnose(trace).findings if finding.kind == "hang"]
    assert [finding.where.get("ranks", [finding.where.get("rank")]) for finding in hang] == [[5]]


def test_a_blocked_rank_takes_the_same_longer_for_every_forward_pass():
    """A rank that sleeps would be simulated as one that computes slowly."""
    job = SyntheticJob(layout=LAYOUT, steps=2, jitter_cv=0.1)
    blocked = replace(job, faults=(parse_fault("blocked_rank:rank=3,extra_ms=7,first_step=1"),))
    spans = [generate(own)[0].frame("span") for own in (job, blocked)]
    keys = ["rank", "step", "kind", "microbatch", "chunk"]
    clean, slow = (own.set_index(keys)["cpu_ns"].sort_index() for own in spans)
    changed = (slow - clean)[slow != clean]
    assert set(changed) == {7_000_000}
    assert {index[:3] for index in changed.index} == {(3, 1, "forward")}


def test_every_table_is_as_declared():
    """Readers would meet columns or types that no capture has."""
    trace = record(make_simulation(SyntheticJob(layout=ParallelLayout(tp=2, pp=2, dp=2, cp=2))))
    for name, table in trace.tables.items():
        assert table.schema.equals(TABLES[name].arrow_schema()), name


def test_a_run_directory_says_that_it_is_synthetic_and_holds_its_truth(tmp_path):
    """A simulated time could be taken for a measured one."""
    skew = parse_fault("clock_skew:host=1,offset_ms=250")
    slow = parse_fault("slow_rank:rank=3,factor=1.5")
    job = SyntheticJob(layout=LAYOUT, steps=4, ranks_per_host=4, faults=(slow, skew))
    trace, truth = generate(job)
    path = write_run(job, trace, truth, tmp_path)
    result = diagnose(load_trace(path))
    assert result.run["origin"] == "synthetic"
    assert any("nothing was measured" in limit for limit in texts(result.limits))
    assert result.step_time_ns == pytest.approx(truth.step_time_ns, rel=1e-6)
    stored = json.loads((path / "truth.json").read_text())
    assert stored["synthetic"] is True
    assert stored["faults"][0]["removal_gain_ns"] == truth.faults[0].removal_gain_ns
    with pytest.raises(ConfigError, match="written before"):
        write_run(job, trace, truth, tmp_path)


def test_the_command_writes_a_run(tmp_path):
    """The example in the documentation would not work."""
    import typer

    from meshscope.analyze.synthetic.__main__ import main

    app = typer.Typer()
    app.command()(main)
    words = "--layout tp2,pp2 --schedule zb-h1 --layers 3,2 --cost head=0.5 --steps 2"
    fault = ["--fault", "slow_rank:rank=1,factor=1.3"]
    done = CliRunner().invoke(app, [*words.split(), *fault, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (run,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert str(run) in done.output
    assert load_trace(run).run["schedule"] == "zb-h1"


def test_layouts_and_costs_are_read():
    """A job of other sizes or durations than asked for would be simulated."""
    assert parse_layout("tp8,pp16,dp128") == ParallelLayout(tp=8, pp=16, dp=128)
    assert parse_layout("dp2,order=dp-pp-cp-tp").order == "dp-pp-cp-tp"
    assert parse_costs(["head=2.5"]) == Costs(head_ns=2_500_000)
    for wrong in ("tp", "xx2", ""):
        with pytest.raises(ConfigError):
            parse_layout(wrong)
    with pytest.raises(ConfigError):
        parse_costs(["heads=1"])


def test_a_pause_lies_before_the_communication_of_its_pass():
    """Its span would cover transfers, and what the pause costs would be told too low."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=1),
        segments=3,
        faults=(parse_fault("gc_pause:rank=1,extra_ms=20,microbatch=0"),),
    )
    trace, truth = generate(job)
    spans, transfers = trace.frame("span"), trace.frame("collective").query("rank == 1")
    pauses = spans[spans["kind"] == "gc"]
    assert len(pauses) == job.steps
    for start, length in zip(pauses["start_ns"], pauses["dur_ns"], strict=True):
        assert not transfers["start_ns"].between(start, start + length, inclusive="left").any()
    cause = next(cause for cause in diagnose(trace).causes if cause.kind == "gc_pause")
    gain = truth.faults[0].removal_gain_ns / truth.step_time_ns
    assert cause.removal_gain_frac == pytest.approx(gain, abs=1e-6)
