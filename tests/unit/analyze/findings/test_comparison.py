"""Two runs side by side: the parts of the change sum to it, and name what was changed."""

import json
from dataclasses import replace

import pytest
from tests.tables import trace_of
from tests.texts import texts
from typer.testing import CliRunner

from meshscope.analyze.findings.comparison import compare, side_of_account, unlike
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.output.json import comparison_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.text import comparison_document
from meshscope.analyze.synthetic import SyntheticJob, generate, parse_fault
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

SLOW = "slow_rank:rank=3,factor=1.5"
NAMES = ["gemm", "softmax", "aten::mm", "aten::softmax", "gelu", "aten::gelu"]
GEMM, SOFTMAX, MM, SOFT, GELU, GELU_OP = range(len(NAMES))


def job(*faults):
    """Return a small pipeline job."""
    return SyntheticJob(
        layout=ParallelLayout(pp=2, dp=2),
        steps=8,
        schedule=ScheduleKind.ONE_F_ONE_B,
        jitter_cv=0.02,
        faults=tuple(map(parse_fault, faults)),
    )


@pytest.fixture(scope="module")
def jobs():
    """Return the job as it was, and with a slow rank."""
    return [side_of_account(measure(generate(one)[0])) for one in (job(), job(SLOW))]


def test_the_parts_sum_to_the_change_and_name_the_fault(jobs):
    """Fails when a class of time is lost on the way, or the new cause is not reported."""
    result = comparison_to_json(compare(*jobs))
    parts = sum(row["change_ns"] for row in result["classes"])
    assert parts == pytest.approx(result["change_ns"], abs=1)
    assert result["change_ns"] > 3 * result["error_ns"] > 0
    new = [row for row in result["findings"] if row["state"] == "new"]
    assert [row["kind"] for row in new] == ["straggler_rank"]
    assert new[0]["before_ns"] == 0 < new[0]["after_ns"]
    assert result["operators"] == []
    assert "No kernels" in " ".join(result["limits"])


def test_the_other_way_round_is_the_negative(jobs):
    """Fails when the order of the runs changes more than signs."""
    there, back = compare(*jobs), compare(*reversed(jobs))
    changes = [
        result.classes.set_index("class")["change_ns"].sort_index() for result in (there, back)
    ]
    assert changes[0].to_dict() == pytest.approx((-changes[1]).to_dict())
    states = {row["state"] for row in comparison_to_json(back)["findings"]}
    assert "gone" in states
    assert "new" not in states


def kernels(gemm_ns, gemms, *more):
    """Return two steps of 1000 ns with products of a length."""
    rows = [(GEMM, 0, at * gemm_ns, gemm_ns) for at in range(gemms)]
    rows.append((SOFTMAX, 1, 700, 50))
    return trace_of(
        name=[{"name_id": at, "name": name} for at, name in enumerate(NAMES)],
        step=[{"step": step, "start_ns": 1000 * step, "dur_ns": 1000} for step in (0, 1)],
        op=[
            {"op_id": op_id, "name_id": name, "start_ns": 0, "dur_ns": 1}
            for op_id, name in enumerate((MM, SOFT, GELU_OP))
        ],
        kernel=[
            {"step": step, "name_id": name, "op_id": op, "launch_ns": 0}
            | {"start_ns": 1000 * step + start, "dur_ns": dur}
            for step in (0, 1)
            for name, op, start, dur in (*rows, *more)
        ],
    )


def test_operators_split_into_more_calls_and_longer_calls():
    """Fails when a kernel that runs more often is called slower, or a new one is missed."""
    before, after = kernels(100, 2), kernels(120, 3, (GELU, 2, 800, 30))
    result = comparison_to_json(
        compare(side_of_account(measure(before)), side_of_account(measure(after)))
    )
    by_kernel = {row["name"]: row for row in result["kernels"]}
    gemm = by_kernel["gemm"]
    assert (gemm["before_ns"], gemm["after_ns"]) == (200, 360)
    assert (gemm["more_ns"], gemm["longer_ns"]) == (100, 60)
    assert (by_kernel["gelu"]["more_ns"], by_kernel["gelu"]["longer_ns"]) == (30, 0)
    assert "softmax" not in by_kernel
    assert [row["operator"] for row in result["operators"]] == ["aten::mm", "aten::gelu"]
    text = to_plain(comparison_document(result))
    assert "longer calls ms" in text
    assert "total" in text


def test_runs_that_tell_compute_apart_differently_are_compared_as_a_whole(jobs):
    """Fails when what only one run knows, such as MFU, looks like a change of the step."""
    known = {"num_layers": 2, "hidden_size": 64, "seq_len": 32, "vocab_size": 100}
    known |= {"parameters": 10**6, "tokens_per_step": 4096, "peak_flops": 1e12}
    trace, _ = generate(job())
    names = set(known)
    bare = trace.run | dict.fromkeys(names)
    sides = [side_of_account(measure(_with_run(trace, run))) for run in (bare, trace.run | known)]
    result = compare(*sides)
    assert "useful" not in set(result.classes["class"])
    assert result.classes["change_ns"].abs().max() == pytest.approx(0, abs=1)
    assert "distinguishes" in " ".join(texts(result.limits))
    assert result.setup["seq_len"][1] == 32


def _with_run(trace, run):
    from dataclasses import replace

    return replace(trace, run=run)


def test_the_command_compares_two_runs(tmp_path):
    """Fails when two run directories cannot be compared from the command line."""
    runs = [
        write_run(one, generate(one)[0], None, tmp_path / name)
        for name, one in (("a", job()), ("b", job(SLOW)))
    ]
    said = CliRunner().invoke(app, ["compare", *map(str, runs), "--format", "json"])
    result = json.loads(said.stdout)
    assert result["after"]["step_time_ns"] > result["before"]["step_time_ns"]
    assert "classes" in result
    text = CliRunner().invoke(app, ["compare", *map(str, runs)]).stdout
    assert "Where the step changed" in text
    assert "Next: meshscope diagnose" in text


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ({}, None),
        ({"origin": ("kineto", "meshscope"), "schedule": ("1f1b", None)}, None),
        ({"pp": (4, 1), "world_size": (8, 4)}, "differ in pp and world size."),
    ],
)
def test_unlike_jobs_are_called_so_first(setup, said):
    """Fails when a change between two different jobs reads as one of speed, or an unknown value as a difference."""
    pairs = {
        name: dict(zip(("before", "after"), pair, strict=True)) for name, pair in setup.items()
    }
    found = unlike(pairs)
    assert (found is None) if said is None else (said in str(found))


def test_findings_of_one_kind_and_place_are_all_there(jobs):
    """Fails when of two findings that differ by their cause alone, or by nothing, one is lost in a comparison."""
    before, after = jobs
    slow = next(one for one in after.diagnosis.findings if one.kind == "straggler_rank")
    several = [replace(slow, cause="a", cost_frac=0.4), replace(slow, cause="b", cost_frac=0.1)]
    several.append(several[0])
    diagnosis = replace(after.diagnosis, findings=tuple(several))
    result = comparison_to_json(compare(before, replace(after, diagnosis=diagnosis)))
    new = [row for row in result["findings"] if row["state"] == "new"]
    costs = [row["after_ns"] / diagnosis.step_time_ns for row in new]
    assert costs == pytest.approx([0.4, 0.1, 0.4])
