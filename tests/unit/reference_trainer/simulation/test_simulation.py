"""Ranks of large jobs, run alone and without memory."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from meshscope.analyze.formulas.planning.pipeline_replay import replay
from meshscope.analyze.formulas.schedules import rank_orders
from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.config.presets import load_config, preset_text
from meshscope.reference_trainer.planning.memory_plan import memory_plan
from meshscope.reference_trainer.planning.parameter_counts import parameter_count
from meshscope.reference_trainer.simulation.pass_watch import Holding
from meshscope.reference_trainer.simulation.simulation import shortened, simulate_rank

BF16_GRADIENTS = "memory.gradients=bf16"
ONE_MICROBATCH = ("schedule.microbatches=1", "layout.dp=8", "train.global_batch=8")
SMALL = ("model.layers=4", "model.vocab=64", "layout.pp=2", "train.global_batch=16")


def preset(name, *overrides):
    """Return a shipped configuration with some changes."""
    return load_config(preset_text(name), overrides=overrides)


def plan_of(config, rank):
    """Return the formulas of the rank's pipeline position."""
    return memory_plan(config)[config.layout.coordinates(rank)["pp"]]


def test_gpt3_on_512_gpus_holds_2_7_billion_parameters_per_gpu():
    """Fails if the built middle stage of 175 B on TP8 x PP8 x DP8 has other sizes than published."""
    config = preset("gpt3-175b", *ONE_MICROBATCH)
    assert config.layout.world_size == 512
    found = simulate_rank(config, 3 * 64)
    assert found.position == 3
    assert found.parameters == plan_of(config, 3 * 64).parameters
    assert found.parameters / 1e9 == pytest.approx(2.7, abs=0.05)
    assert found.held.weights_bytes / 1e9 == pytest.approx(5.4, abs=0.05)


def test_zero1_of_a_hundred_billion_shards_the_optimizer_alone():
    """Fails if 3.1 + 3.1 + 2.3 GB are not what the storages of a rank hold, to the digit."""
    sizes = ("model.layers=40", "model.hidden=14336", "model.ffn=57344", "model.heads=112")
    settings = (*sizes, "model.tied=false", "data_parallel.zero=1", BF16_GRADIENTS)
    config = preset("gpt3-175b", *ONE_MICROBATCH, *settings)
    assert parameter_count(config.model) == pytest.approx(100e9, rel=2e-3)
    found, plan = simulate_rank(config, 3 * 64), plan_of(config, 3 * 64)
    held = found.held
    optimizer_bytes = held.masters_bytes + held.optimizer_bytes
    sizes_bytes = (held.weights_bytes, held.gradients_bytes, optimizer_bytes)
    assert [f"{size / 1e9:.1f}" for size in sizes_bytes] == ["3.1", "3.1", "2.3"]
    assert held.gradients_bytes == pytest.approx(plan.gradient_bytes, rel=1e-3)
    assert optimizer_bytes == pytest.approx(plan.adam_zero1_bytes, rel=1e-3)


def test_gpt3_on_1024_gpus_needs_sixteen_gigabytes_for_an_unsharded_adam():
    """Fails if 2.7 GB, 2.7 GB and 12 bytes per parameter are not what TP8 x PP16 holds."""
    config = preset("gpt3-175b", *ONE_MICROBATCH, "layout.pp=16", BF16_GRADIENTS)
    assert config.layout.world_size == 1024
    found, plan = simulate_rank(config, 7 * 64), plan_of(config, 7 * 64)
    assert found.held.weights_bytes / 1e9 == pytest.approx(2.7, abs=0.05)
    assert found.held.gradients_bytes / 1e9 == pytest.approx(2.7, abs=0.05)
    assert found.held.gradients_bytes == plan.gradient_bytes
    # Counted independently of what the replica says of itself: nothing else is called gradients.
    assert found.phases[0].holdings[Holding.GRADIENTS] == found.held.gradients_bytes
    optimizer_bytes = found.held.masters_bytes + found.held.optimizer_bytes
    assert optimizer_bytes / 1e9 == pytest.approx(16.4, abs=0.15)


@pytest.mark.parametrize(
    ("kind", "chunks", "idle_over_ideal"),
    [
        pytest.param("gpipe", 1, 1 / 4, marks=pytest.mark.slow),
        ("1f1b", 1, 1 / 4),
        ("interleaved-1f1b", 2, 1 / 8),
        pytest.param("zb-h1", 1, 1 / 12, marks=pytest.mark.slow),
        ("zb-v", 2, 0.0),
        pytest.param("dualpipe-v", 2, 1 / 24, marks=pytest.mark.slow),
    ],
)
def test_the_passes_that_really_run_have_the_bubble_of_the_formula(kind, chunks, idle_over_ideal):
    """Fails if the runtime executes another order than planned: (p-1)/m, (p-1)/(m v) and the rest."""
    settings = (f"schedule.kind={kind}", f"layout.vpp={chunks}", "schedule.microbatches=4")
    config = preset("tiny", *SMALL, *settings)
    orders = [simulate_rank(config, rank, every_microbatch=True).order for rank in range(2)]
    assert orders == list(rank_orders(kind, 2, 4, chunks))
    cost = replay(orders, lambda _stage: 1 / chunks)
    assert cost.idle_over_ideal == pytest.approx(idle_over_ideal, abs=1e-9)


@pytest.mark.parametrize("zero", [0, 2])
def test_fewer_microbatches_show_the_memory_of_all(zero):
    """Fails if cutting the steady state short changes a peak, or forgets the message buffers."""
    settings = ("schedule.microbatches=8", f"data_parallel.zero={zero}", "layout.dp=2")
    config = preset("tiny", *SMALL, *settings, "train.global_batch=16", "train.optimizer=adamw")
    short, whole = (simulate_rank(config, 0, every_microbatch=every) for every in (False, True))
    assert (short.microbatches, whole.microbatches) == (4, 8)
    assert short.activations_bytes == pytest.approx(whole.activations_bytes, rel=1e-3)
    for one, other in zip(short.phases, whole.phases, strict=True):
        # Only tokens and losses of the step are fewer.
        assert one.peak_bytes == pytest.approx(other.peak_bytes, rel=0.02), one.name


def test_a_schedule_that_holds_everything_is_run_to_its_end():
    """Fails if GPipe, which holds every microbatch, is cut short."""
    config = preset("tiny", *SMALL, "schedule.kind=gpipe", "schedule.microbatches=16")
    assert shortened(config, 0) == config


def test_peaks_sum_up_and_first_stages_hold_more():
    """Fails if parts of a peak are lost, or 1F1B does not hold p - stage microbatches."""
    config = preset("tiny", *SMALL, "layout.pp=4", "schedule.microbatches=4")
    second, third = (simulate_rank(config, rank) for rank in (1, 2))
    for phase in (*second.phases, *third.phases):
        assert sum(phase.holdings.values()) == phase.peak_bytes
    assert second.activations_bytes == 3 * third.activations_bytes / 2


def test_sharded_weights_are_whole_within_the_step_only():
    """Fails if the all-gathered weights of ZeRO-3 are not seen, or count between steps."""
    settings = ("data_parallel.zero=3", "layout.dp=4", "schedule.microbatches=4")
    config = preset("tiny", *SMALL, *settings, "train.optimizer=adamw")
    found = simulate_rank(config, 0)
    pipeline = found.phases[1].holdings
    shard = found.held.weights_bytes
    assert shard == pytest.approx(found.parameters, rel=0.02), "a quarter of 4 bytes"
    assert pipeline[Holding.WEIGHTS] == pytest.approx(5 * shard, rel=0.02)
    assert found.held.optimizer_bytes == 2 * shard


@pytest.mark.parametrize(("recompute", "share"), [("none", 16), ("selective", 7), ("full", 1)])
def test_recomputation_leaves_what_it_says(recompute, share):
    """Fails if 16, 7 and 1 values per width, token and block are not what forwards leave."""
    sizes = ("model.hidden=64", "model.ffn=256", "model.heads=1", "train.global_batch=1")
    settings = (*sizes, f"memory.recompute={recompute}", "schedule.microbatches=1", "layout.pp=1")
    two, four = (
        simulate_rank(preset("tiny", *settings, f"model.layers={layers}"), 0) for layers in (2, 4)
    )
    values = (four.activations_bytes - two.activations_bytes) / (4 * 2)
    assert values / (64 * 16) == pytest.approx(share, rel=0.02)


def test_a_split_backward_repeats_a_block_once():
    """Fails if the gradients of each group of weights have their block run again."""
    settings = (*SMALL, "layout.tp=2", "memory.recompute=full")
    whole, split = (
        simulate_rank(preset("tiny", *settings, f"schedule.kind={kind}"), 2).collectives
        for kind in ("1f1b", "zb-h1")
    )
    assert split == whole


@pytest.mark.parametrize(
    ("name", "overrides", "rank", "message"),
    [
        ("tiny", (), 2, r"--simulate-rank: rank 2 is outside 0\.\.1"),
        ("moe-tiny", (), 0, r"moe\.capacity_factor: .* --set moe\.capacity_factor=1"),
        ("tiny", ("memory.offload=true",), 0, r"memory\.offload: .*false"),
        ("llama3-405b", (), 0, r"model\.family"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_the_remedy(name, overrides, rank, message):
    """Fails if a simulation ends in an error of torch, or in numbers that mean nothing."""
    with pytest.raises(ConfigError) as refused:
        simulate_rank(preset(name, *overrides), rank)
    assert re.search(message, str(refused.value))


@pytest.mark.parametrize(
    "overrides",
    [
        ("layout.cp=2",),
        ("layout.cp=2", "context.form=all_to_all"),
        ("layout.tp=2", "tensor.sequence_parallel=true", "train.max_grad_norm=1.0"),
        ("moe.experts=4", "moe.capacity_factor=1", "layout.dp=2", "layout.ep=2"),
        ("model.tied=true", "data_parallel.compression=int8", "layout.dp=2"),
        ("data_parallel.zero=3", "data_parallel.shard_ranks=2", "layout.dp=4"),
    ],
)
def test_every_axis_runs_without_its_other_ranks(overrides):
    """Fails if a technique of the trainer needs values or a neighbour."""
    found = simulate_rank(preset("tiny", *SMALL, "schedule.microbatches=2", *overrides), 1)
    assert found.order
    assert found.phases[1].peak_bytes > found.phases[0].peak_bytes
    assert set(found.collectives) == set(found.payload_bytes)


@pytest.mark.sampled(keep=())
@pytest.mark.slow
def test_a_rank_of_4096_fits_into_a_gigabyte():
    """Fails if a large job cannot be looked at on a laptop."""
    run = ["--preset", "gpt3-175b", "--set", "layout.dp=64", "--set", "train.global_batch=6144"]
    # The usage that the system reports of a child begins with that of its parent.
    own = "import atexit, runpy; atexit.register(lambda: print(open('/proc/self/status').read())); "
    code = f"{own}runpy.run_module('meshscope.reference_trainer', run_name='__main__')"
    command = [sys.executable, "-c", code, *run, "--simulate-rank", "4095"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
    assert text.startswith("rank      4,095 of 4,096: pp 7, dp 63, cp 0, tp 7; stage 7")
    assert int(text.split("VmHWM:")[1].split()[0]) < 1 << 20
