"""Expected memory of a recorded run: what is known, assumed, inferred, and how far it is off."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from tests.tables import trace_of

from meshscope.analyze.account.memory.by_stage import memory_by_stage
from meshscope.analyze.explain.memory.expected import expected_memory, with_expected
from meshscope.analyze.explain.memory.headroom import headroom
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.formulas.planning import PlannedJob
from meshscope.analyze.formulas.planning.memory import stage_memory
from meshscope.analyze.formulas.planning.terms import Category
from meshscope.analyze.output.json import diagnosis_to_json
from meshscope.analyze.output.text import to_text
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model.fields import model_text

MODEL = ModelDescription(
    num_layers=16, hidden_size=2048, num_heads=16, vocab_size=128_256, seq_len=4096, gated=True
)
JOB = PlannedJob(
    model=MODEL,
    layout=ParallelLayout(pp=4, dp=2),
    microbatches=8,
    microbatch_size=2,
    zero=1,
    gradient_bytes=4,
)
CAPACITY = 100_000_000_000


def recorded(job, *, factor=1.0, categories=True, settings=None, **run):
    """Return a capture of a job that holds what the formulas say, times a factor."""
    rows = []
    for one in stage_memory(job):
        sizes = {kind: one.total(kind) * factor for kind in Category}
        held = round(one.allocated_bytes * factor)
        row = {
            "rank": job.layout.rank(pp=one.stage),
            "peak_bytes": held,
            "allocated_bytes": held,
            "reserved_bytes": round(1.04 * held),
            "capacity_bytes": CAPACITY,
        }
        if categories:
            row |= {f"{kind}_bytes": round(sizes[kind]) for kind in list(Category)[:3]}
            row["activations_bytes"] = round(sizes["activations"] + sizes["logits"])
            row["other_bytes"] = round(sizes["buffers"])
        rows += [{**row, "step": step} for step in (0, 1)]
    layout = job.layout
    facts = {
        "model": model_text(asdict(job.model)),
        "schedule": "1f1b",
        "microbatches": job.microbatches,
        "tokens_per_step": job.microbatches * job.microbatch_size * layout.dp * job.model.seq_len,
    }
    ranks = tuple(range(layout.world_size))
    stated = {"memory_settings": settings} if settings else {}
    return trace_of(
        layout=layout,
        run=facts | stated | run,
        ranks=ranks,
        memory=rows,
        step=[
            {"rank": rank, "dur_ns": 10, "step": step, "start_ns": 10 * step}
            for rank in ranks
            for step in (0, 1)
        ],
    )


def held_against(trace):
    """Return the table with the expected columns, and what is expected."""
    table = memory_by_stage(trace)
    expectation = expected_memory(trace, table)
    return with_expected(table, expectation.found), expectation


@pytest.mark.parametrize("zero", [0, 1, 2])
@pytest.mark.parametrize("gradient", [2, 4])
def test_settings_that_nobody_states_are_read_off_the_recorded_states(zero, gradient):
    """Fails when the expected memory of a run rests on a wrong guess although its bytes say better."""
    layout = ParallelLayout(pp=4, dp=4)
    job = replace(JOB, zero=zero, gradient_bytes=gradient, layout=layout)
    table, expectation = held_against(recorded(job))
    assert (expectation.found.job.zero, expectation.found.job.gradient_bytes) == (zero, gradient)
    assert not any("zero" in one for one in expectation.found.assumed)
    assert np.abs(table["difference_bytes"].astype(float)).max() <= 8


def test_a_difference_is_given_to_its_term():
    """Fails when nobody can see which term of a stage is not as the formulas say."""
    trace = recorded(JOB, settings={"zero": 1, "gradient_dtype": "bf16"})
    table, expectation = held_against(trace)
    gradients = 2 * expectation.found.stages[1].parameters.total
    row = table.set_index("stage").loc[1]
    assert row["gradients_difference_bytes"] == pytest.approx(gradients, abs=8)
    assert row["parameters_difference_bytes"] == pytest.approx(0, abs=8)
    assert row["optimizer_difference_bytes"] == pytest.approx(0, abs=8)


def test_without_categories_the_usual_settings_are_assumed_and_said():
    """Fails when an assumption passes for a fact."""
    _, expectation = held_against(recorded(JOB, categories=False))
    assert "zero 1" in expectation.found.assumed
    assert "gradient_dtype bf16" in expectation.found.assumed
    assert expectation.found.inferred == ()


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ({"model": None}, "model's description"),
        ({"tokens_per_step": None}, "tokens per step"),
        ({"tokens_per_step": 12345}, "do not divide"),
        ({"memory_settings": {"layers": [1, 2]}}, "2 counts are given for 4 stages"),
        ({"memory_settings": {"layers": [1, 2, 3, 4]}}, "not a split of 16 layers"),
    ],
)
def test_what_is_missing_is_named(lacks, why):
    """Fails when expected memory is guessed from half of a description."""
    table, expectation = held_against(recorded(JOB, **lacks))
    assert expectation.found is None
    assert why in str(expectation.unknown_because)
    assert table["expected_bytes"].isna().all()


def test_the_diagnosis_shows_expected_beside_measured():
    """Fails when a surface loses the expected memory or names a wrong reason for a heavy stage."""
    result = diagnose(recorded(JOB, factor=1.01))
    found = {f.where["stage"]: f for f in result.findings if f.kind == "memory_imbalance"}
    assert set(found) == {0, 3}
    words = {stage: " ".join(map(str, one.evidence)) for stage, one in found.items()}
    assert "parameters, gradients and optimizer of the embedding" in words[0]
    assert "logits of a vocabulary of 128,256" in words[3]
    assert "output head" in words[3]
    text = to_text(result)
    assert "Expected by the formulas" in text
    assert "+1.0 %" in text
    reported = diagnosis_to_json(result)
    assert reported["memory_expectation"]["unknown_because"] == ""
    assert reported["memory"][0]["expected_bytes"] > 0


def test_who_runs_out_first_and_when():
    """Fails when the interval of what fits does not hold what the formulas themselves say."""
    table, expectation = held_against(recorded(JOB))
    room = headroom(table, expectation.found)

    def fits(size, free, ratio):
        planned = stage_memory(replace(JOB, microbatch_size=size))
        return max(one.allocated_bytes for one in planned) * ratio <= CAPACITY - free

    size = room.microbatch_size
    assert fits(size.surely, 3e9, 1.093)
    assert not fits(size.surely + 1, 3e9, 1.093)
    assert fits(size.at_most, 1e9, 1.04)
    assert not fits(size.at_most + 1, 1e9, 1.04)
    assert size.now <= size.surely <= size.at_most
    assert room.seq_len.surely >= MODEL.seq_len
    peaks = [one.allocated_bytes for one in stage_memory(JOB)]
    assert room.stage == int(np.argmax(peaks))


def test_more_memory_beside_the_formulas_leaves_less_room():
    """Fails when what a run holds beyond the formulas does not count."""
    rooms = []
    for factor in (1.0, 1.3):
        trace = recorded(JOB, factor=factor, settings={"zero": 1, "gradient_dtype": "fp32"})
        table, expectation = held_against(trace)
        rooms.append(headroom(table, expectation.found).seq_len.surely)
    assert rooms[1] < rooms[0]
