"""What a job needs before it runs, against published figures and against its own schedule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.texts import texts

from meshscope.analyze.formulas.planning import PlannedJob, Recompute, make_job_plan
from meshscope.analyze.formulas.planning.cap import check_cap, parse_bytes
from meshscope.analyze.formulas.planning.memory import stage_memory
from meshscope.analyze.formulas.planning.terms import Category
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.terms import ScheduleKind

GPT3 = ModelDescription(
    num_layers=96, hidden_size=12288, num_heads=96, vocab_size=51200, seq_len=2048, tied=True
)
SMALL = ModelDescription(
    num_layers=16, hidden_size=512, num_heads=8, vocab_size=32000, seq_len=1024, gated=True
)


def job_of(model=SMALL, *, mesh=None, **settings):
    """Return a job on a mesh."""
    return PlannedJob(model=model, layout=ParallelLayout(**(mesh or {})), **settings)


def gigabytes(job, stage):
    """Return parameters, gradients and optimizer of a stage in GB."""
    found = stage_memory(job)[stage]
    names = (Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER)
    return [found.total(name) / 1e9 for name in names]


def test_100_billion_parameters_on_512_gpus():
    """Fails if states are not 3.1 + 3.1 + 2.3 GB with ZeRO-1 over 8 replicas."""
    model = ModelDescription(
        num_layers=80, hidden_size=10240, num_heads=80, vocab_size=51200, seq_len=2048
    )
    job = job_of(model, mesh={"tp": 8, "pp": 8, "dp": 8}, microbatches=32)
    assert gigabytes(job, 3) == pytest.approx([3.1, 3.1, 2.3], abs=0.1)


def test_gpt3_on_1024_gpus():
    """Fails if states of 175 billion parameters are not 2.7 + 2.7 + 16.4 GB without sharding."""
    job = job_of(GPT3, mesh={"tp": 8, "pp": 16, "dp": 8}, microbatches=64, zero=0)
    assert gigabytes(job, 7) == pytest.approx([2.7, 2.7, 16.4], abs=0.1)


def test_full_recomputation_costs_a_third_and_selective_little():
    """Fails if recomputation of GPT-3 is not + 33 % of the layers, or selective not far below."""
    full, selective = (
        make_job_plan(job_of(GPT3, recompute=mode)).recompute_frac
        for mode in (Recompute.FULL, Recompute.SELECTIVE)
    )
    assert full == pytest.approx(0.33, abs=0.01)
    assert 0 < selective < 0.03


def test_selective_saves_the_scores_and_full_nearly_all():
    """Fails if unfused attention keeps no scores, or recomputation keeps them."""
    kept = {
        mode: stage_memory(job_of(GPT3, fused_attention=False, recompute=mode))[0].total(
            Category.ACTIVATIONS
        )
        for mode in Recompute
    }
    units = 96 * 2048 * 12288
    # Scores of 2 bytes: 2 a s / h for each unit, with 96 heads of 128.
    assert kept["none"] - kept["selective"] == pytest.approx(units * 2 * 96 * 2048 / 12288)
    assert kept["full"] == pytest.approx(2 * units, rel=0.05)


@pytest.mark.parametrize("microbatches", [2, 4, 16])
def test_1f1b_holds_p_minus_s_microbatches(microbatches):
    """Fails if a stage of 1F1B does not hold min(p - s, m) microbatches."""
    found = stage_memory(job_of(mesh={"pp": 4}, microbatches=microbatches))
    assert [one.in_flight for one in found] == [min(4 - s, microbatches) for s in range(4)]


def test_gpipe_holds_all_microbatches():
    """Fails if GPipe frees activations before its backwards."""
    found = stage_memory(job_of(mesh={"pp": 4}, microbatches=6, schedule=ScheduleKind.GPIPE))
    assert [one.in_flight for one in found] == [6] * 4


def test_interleaving_holds_what_its_order_holds():
    """Fails if chunks in flight are not 2 (p - s - 1) + (v - 1) p + 1, as Megatron's warm-up has."""
    job = job_of(mesh={"pp": 4, "vpp": 4}, microbatches=16, schedule=ScheduleKind.INTERLEAVED)
    found = stage_memory(job)
    assert [one.in_flight_chunks for one in found] == [2 * (3 - s) + 3 * 4 + 1 for s in range(4)]


@given(
    st.sampled_from(["1f1b", "zb-h1", "interleaved-1f1b"]), st.integers(1, 4), st.integers(6, 40)
)
def test_further_microbatches_hold_nothing_more(kind, rounds, more):
    """Fails if leaving out steady rounds of a long step changes what is held."""
    chunks = 2 if kind == "interleaved-1f1b" else 1
    few, many = (
        stage_memory(
            job_of(
                mesh={"pp": 4, "vpp": chunks},
                microbatches=4 * count,
                schedule=ScheduleKind(kind),
            )
        )
        for count in (4 + rounds, 4 + rounds + more)
    )
    assert [one.allocated_bytes for one in few] == [one.allocated_bytes for one in many]


def test_terms_sum_to_what_is_allocated():
    """Fails if a byte of a stage has no term, or counts twice."""
    for one in stage_memory(job_of(mesh={"pp": 2, "tp": 2}, microbatches=8)):
        total = sum(one.total(category) for category in Category)
        assert total == pytest.approx(one.allocated_bytes)
        assert all(term.formula and term.source and term.size_bytes > 0 for term in one.terms)


def test_sharing_divides_what_each_stage_of_zero_shares():
    """Fails if a stage of ZeRO shares more or less than its name says."""
    sizes = [gigabytes(job_of(GPT3, mesh={"dp": 8}, zero=zero), 0) for zero in range(4)]
    assert [row[2] for row in sizes[1:]] == pytest.approx([sizes[0][2] / 8] * 3, rel=1e-3)
    assert [row[1] / sizes[0][1] for row in sizes] == pytest.approx([1, 1, 1 / 8, 1 / 8], rel=1e-2)
    assert [row[0] / sizes[0][0] for row in sizes] == pytest.approx([1, 1, 1, 1 / 8], rel=1e-2)


def test_experts_share_the_optimizer_over_their_own_replicas():
    """Fails if experts under expert parallelism are taken to have as many replicas as the rest."""
    model = ModelDescription(
        num_layers=4,
        hidden_size=512,
        num_heads=8,
        vocab_size=1024,
        seq_len=512,
        gated=True,
        experts=8,
        experts_per_token=2,
        expert_ffn_size=1024,
    )
    job = job_of(model, mesh={"dp": 8, "ep": 4})
    assert job.expert_replicas == 2
    term = next(t for t in stage_memory(job)[0].terms if t.name == "experts optimizer")
    assert term.size_bytes == 12 * (8 // 4) * 4 * 3 * 512 * 1024 / 2


@pytest.mark.parametrize(
    ("kind", "chunks", "expected"),
    [("1f1b", 1, 3 / 19), ("gpipe", 1, 3 / 19), ("interleaved-1f1b", 2, 3 / 35)],
)
def test_ideal_bubble_has_its_published_form(kind, chunks, expected):
    """Fails if the bubble is not (p - 1) / (m v + p - 1)."""
    job = job_of(mesh={"pp": 4, "vpp": chunks}, microbatches=16, schedule=ScheduleKind(kind))
    assert make_job_plan(job).bubble_frac == pytest.approx(expected)


def test_dualpipe_v_is_planned():
    """Fails if the plan refuses the schedule, or gives its ranks other stages and memory.

    Both ends of the V lie on the first rank; every rank holds 2 p + 1 chunks (DualPipe's table).
    """
    mesh, kind = {"pp": 4, "vpp": 2}, ScheduleKind.DUALPIPE_V
    plan = make_job_plan(job_of(mesh=mesh, microbatches=16, schedule=kind))
    assert plan.bubble_frac / (1 - plan.bubble_frac) == pytest.approx(3 / (6 * 16))
    assert [one.stages for one in plan.stages] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert {one.in_flight_chunks for one in plan.stages} == {2 * 4 + 1}
    assert any("pair follow each other" in limit for limit in texts(plan.limits))
    with pytest.raises(ConfigError, match="do not fill both legs"):
        make_job_plan(job_of(mesh=mesh, microbatches=7, schedule=kind))


def test_zero_bubble_orders_idle_less():
    """Fails if ZB-H1 does not fill two thirds of the bubble of 1F1B."""
    one, two = (
        make_job_plan(job_of(mesh={"pp": 4}, microbatches=16, schedule=ScheduleKind(kind)))
        for kind in ("1f1b", "zb-h1")
    )
    over = [plan.bubble_frac / (1 - plan.bubble_frac) for plan in (one, two)]
    assert over[1] == pytest.approx(over[0] / 3, rel=0.02)


def test_volumes_are_counted_by_hand():
    """Fails if a layer has other collectives than four gathers and scatters forward, six backward."""
    job = job_of(mesh={"tp": 2, "pp": 2, "dp": 4}, microbatches=8, gradient_bytes=4)
    found = {(one.axis, one.kind): one for one in make_job_plan(job).volumes}
    hidden = 2 * 1024 * 512
    # 8 layers a stage, two blocks in each; the last stage has the head too.
    assert found["tp", "all_gather"].count_per_step == 8 * (8 * 2 * 3 + 2)
    assert found["tp", "reduce_scatter"].bytes_per_step == 8 * (8 * 2 * 2 + 1) * hidden
    assert found["pp", "send"].count_per_step == 8
    assert found["pp", "send"].bytes_per_step == 8 * hidden / 2
    parameters = max(one.parameters.total for one in make_job_plan(job).stages)
    assert found["dp", "reduce_scatter"].bytes_per_step == 4 * parameters
    assert found["dp", "all_gather"].bytes_per_step == 2 * parameters


@pytest.mark.parametrize(
    ("mesh", "settings", "where"),
    [
        ({"pp": 3}, {}, "layers"),
        ({"tp": 3}, {}, "tp"),
        ({"ep": 2, "dp": 2}, {}, "ep"),
        ({"pp": 2, "vpp": 2}, {}, "vpp"),
        ({"pp": 4}, {"schedule": ScheduleKind.OTHER}, "schedule"),
        ({"pp": 4}, {"schedule": ScheduleKind.DUALPIPE_V}, "vpp"),
        ({"pp": 4}, {"layers_per_stage": (4, 4, 4)}, "layers"),
        ({}, {"zero": 4}, "zero"),
        ({"cp": 3}, {}, "seq_len"),
    ],
)
def test_settings_that_do_not_fit_are_refused_with_the_remedy(mesh, settings, where):
    """Fails if a job that cannot run is planned, or its error names no remedy."""
    with pytest.raises(ConfigError) as error:
        job_of(mesh=mesh, **settings)
    assert error.value.where == where
    assert error.value.remedy


def test_a_cap_names_what_would_fit():
    """Fails if a cap that leaner settings meet is not met by them, or one that none meets passes."""
    plan = make_job_plan(job_of(GPT3, mesh={"tp": 8, "pp": 16, "dp": 8}, microbatches=64, zero=0))
    found = check_cap(plan, "20GB")
    assert not found["fits"]
    assert found["alternatives"][-1]["fits"]
    assert found["alternatives"][-1]["needed_bytes"] <= 20e9
    changes = [row["change"] for row in check_cap(plan, "14GB")["alternatives"]]
    assert "zero 1, recompute full" in changes
    assert all(change.count("zero") < 2 for change in changes)
    with pytest.raises(ConfigError, match="is the least"):
        check_cap(plan, "1 GB")
    assert check_cap(plan, "80e9")["fits"]


@pytest.mark.parametrize(
    ("text", "size"), [("80e9", 80e9), ("80GB", 80e9), ("80 GiB", 80 * 2**30), ("123", 123)]
)
def test_sizes_are_read_as_people_write_them(text, size):
    """Fails if a size with a unit is misread."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "abc", "-5", "80 XB", "1e400", "nan"])
def test_what_is_no_size_is_refused(text):
    """Fails if a slip of the pen becomes a cap."""
    with pytest.raises(ConfigError):
        parse_bytes(text)
