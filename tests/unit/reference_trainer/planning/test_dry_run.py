"""The plan of a run, as a user reads it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from meshscope.reference_trainer.compat import FakeStore
from meshscope.reference_trainer.config.presets import load_config, preset_names, preset_text
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import build_mesh
from meshscope.reference_trainer.planning.dry_run import (
    checkpoint_lines,
    checkpoint_size,
    dry_run_text,
)
from meshscope.reference_trainer.replica.tied_embedding import TiedEmbedding


def plan(preset, *overrides):
    """Return the plan of a preset by its lines."""
    return dry_run_text(load_config(preset_text(preset), overrides=overrides)).splitlines()


def fields(lines, first):
    """Return the cells of the one line that starts with a word."""
    (line,) = [line for line in lines if line.split()[:1] == [first]]
    return line.split()


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_has_a_plan(preset):
    """Fails if a layout, large or small, cannot be planned."""
    assert {line.split()[0] for line in plan(preset) if line} >= {"layout", "bubble", "memory"}


def test_a_published_layout_is_planned_in_full():
    """Fails if ranks, groups, blocks or the bubble of GPT-3 on 1,024 GPUs are not what they are."""
    lines = plan("gpt3-175b")
    assert fields(lines, "layout")[1] == "1,024"
    assert fields(lines, "tp") == ["tp", "128", "8", "0", "1", "2", "…", "7"]
    assert "pp            128     8  0 128 256 … 896" in lines
    assert fields(lines, "embedding") == ["embedding", "128", "2", "0", "896"]
    assert fields(lines, "1f1b")[2:5] == ["7.29%", "(p-1)/m", "6.80%"]
    assert fields(lines, "zb-v")[2] == "0.00%"


def test_every_group_that_the_ranks_make_is_planned(monkeypatch):
    """Fails if a kind of group is left out, or has other members than at run time."""
    settings = ("layout.tp=2", "layout.dp=4", "layout.cp=2", "layout.ep=2", "model.tied=true")
    config = load_config(
        preset_text("tiny"),
        overrides=[*settings, "moe.experts=4", "train.global_batch=8", "layout.order=dp-pp-tp-cp"],
    )
    lines = dry_run_text(config).splitlines()
    first = lines.index("") + 2
    planned = {line.split()[0]: line.split()[1:] for line in lines[first : lines.index("", first)]}
    made = {}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=config.layout.world_size)
    try:
        make = dist.new_group
        monkeypatch.setattr(
            dist,
            "new_group",
            lambda ranks, group_desc: (
                made.setdefault(group_desc, []).append(ranks) or make(ranks, group_desc=group_desc)
            ),
        )
        mesh = build_mesh(config.layout, 0, torch.device("cpu"))
        TiedEmbedding(config, mesh, (), Communicator(PerfectLinks()))
    finally:
        dist.destroy_process_group()
    assert planned.keys() == made.keys()
    for name, groups in made.items():
        assert planned[name][:2] == [str(len(groups)), str(len(groups[0]))]
        assert planned[name][2].split("…")[0] == str(groups[0][0])


def test_hybrid_sharding_has_its_groups_in_the_plan():
    """Fails if a reader cannot see which replicas share a copy of the weights."""
    sharded = ("data_parallel.zero=3", "data_parallel.shard_ranks=2")
    lines = plan("tiny", "layout.dp=4", "train.global_batch=8", *sharded)
    assert "dp shards       4     2  0 1" in lines
    assert "dp copies       4     2  0 2" in lines


def test_experts_are_planned_on_the_ranks_that_hold_them():
    """Fails if a mixture of experts is counted as a dense model, or each rank holds all experts."""
    lines = plan("mixtral-8x22b")
    assert fields(lines, "model")[2] == "140,630,071,296"
    assert fields(lines, "ep") == ["ep", "256", "8", "0", "8", "16", "…", "56"]
    # Attention and router whole, one of eight experts, all of it in eight slices but the router.
    block = (2 * 6144**2 + 2 * 6144 * 1024 + 3 * 6144 * 16384) // 8 + (8 + 2) * 6144
    second = next(line for line in lines if line.split()[:4] == ["1", "1", "14", "14-27"])
    assert second.split()[-1] == f"{14 * block:,}"


def test_what_does_not_fit_is_said_with_the_reason():
    """Fails if a schedule is left out of the table without a word."""
    (line,) = [line for line in plan("mt-nlg-530b") if "does not fit" in line]
    assert line.startswith("interleaved-1f1b does not fit: schedule.microbatches: 240")


def test_unequal_stages_cost_more_than_the_formula():
    """Fails if a split by hand has no effect on the expected bubble."""
    sizes = ("model.layers=4", "schedule.microbatches=4")
    even = plan("tiny", *sizes)
    uneven = plan("tiny", *sizes, "schedule.layers_per_stage=[3, 1]")
    assert any(line.startswith("with equal stages, 1f1b idles 25.00%") for line in even)
    # The first stage works 3 x 3 x 4 of an ideal 2 x 3 x 4, and never waits.
    assert any(line.startswith("with its unequal stages, 1f1b idles 50.00%") for line in uneven)


def test_one_rank_has_no_groups_and_no_bubble():
    """Fails if the smallest run cannot be planned."""
    text = "\n".join(plan("tiny", "layout.pp=1"))
    assert "none: one rank" in text
    assert "one rank has no bubble" in text


def test_a_plan_needs_no_torch():
    """Fails if planning takes the seconds that torch needs to start."""
    code = (
        "import sys; from meshscope.reference_trainer.planning.dry_run import dry_run_text;"
        "from meshscope.reference_trainer.config.presets import load_config, preset_text;"
        "dry_run_text(load_config(preset_text('tiny'))); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def size_of(*overrides):
    """Return the size for GPT-3 on 1,024 GPUs, TP8 x PP8 x DP16."""
    return checkpoint_size(load_config(preset_text("gpt3-175b"), overrides=overrides))


def test_a_checkpoint_has_each_weight_and_average_once():
    """Fails if replicas count in the size, or the averages of AdamW do not."""
    size = size_of("train.optimizer=adamw")
    assert size.total / 1e12 == pytest.approx(12 * 174.6e9 / 1e12, rel=2e-3)
    # Counted more than once: biases, norms and positions on tp ranks, the tied rows on two stages.
    assert sum(size.written) * 8 * 16 == pytest.approx(size.total, rel=1e-2)
    assert sum(size.written) * 8 * 16 > size.total
    assert size_of("train.optimizer=sgd").total * 3 == size.total
    assert size_of("train.optimizer=sgd", "train.momentum=0.9").total * 3 == size.total * 2


def test_an_asynchronous_save_copies_what_a_rank_holds():
    """Fails if the host memory is that of a share while every replica copies everything."""
    whole = size_of("train.optimizer=adamw", "data_parallel.zero=0")
    assert whole.staged == pytest.approx([16 * written for written in whole.written])
    sharded = size_of("train.optimizer=adamw", "data_parallel.zero=1")
    assert sharded.staged == sharded.written
    hybrid = size_of(
        "train.optimizer=adamw",
        "data_parallel.zero=3",
        "data_parallel.shard_ranks=4",
        "model.tied=false",
    )
    assert hybrid.staged == pytest.approx([4 * written for written in hybrid.written])


def test_the_plan_says_it_in_words():
    """Fails if a dry run leaves the size of checkpoints out."""
    config = load_config(preset_text("gpt3-175b"), overrides=["train.optimizer=adamw"])
    first, second = checkpoint_lines(config)
    assert first == (
        "checkpoint  2,095.4 GB: fp32 weights, exp_avg, exp_avg_sq, 12 bytes per parameter"
    )
    assert second.startswith("each rank writes 2.0 to 2.1 GB, most on pp rank 0; ")
