"""Configuration: what fits together, and what the messages say."""

from __future__ import annotations

from dataclasses import fields

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    DataConfig,
    DataParallelConfig,
    DeviceConfig,
    ModelConfig,
    PaceConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.fault_plan import parse_fault
from meshscope.reference_trainer.config.fault_spec import FaultSpec


@pytest.mark.parametrize(
    ("build", "field", "remedy"),
    [
        (lambda: ModelConfig(hidden=30), "model.hidden", "Choose a width"),
        (lambda: ModelConfig(layers=0), "model.layers", "at least 1"),
        (lambda: ModelConfig(kv_heads=3), "model.kv_heads", "Choose a divisor"),
        (lambda: ModelConfig(kv_heads=2), "model.kv_heads", "model.family to llama"),
        (lambda: ScheduleConfig(microbatches=0), "schedule.microbatches", "at least 1"),
        (lambda: ScheduleConfig(head_weight=-1.0), "schedule.head_weight", "at least 0"),
        (lambda: ScheduleConfig(stage_weights=(0.0,)), "schedule.stage_weights", "above 0"),
        (
            lambda: ScheduleConfig(layers_per_stage=(1, 1), head_weight=1.0),
            "schedule.layers_per_stage",
            "by hand or by weight",
        ),
        (lambda: TrainConfig(learning_rate=-1.0), "train.learning_rate", "at least 0"),
        (lambda: DeviceConfig(backend="nccl"), "device.backend", "Set device.kind to cuda"),
        (lambda: PaceConfig(head_ms=-1.0), "pace.head_ms", "at least 0"),
    ],
)
def test_a_wrong_section_names_the_field(build, field, remedy):
    """Fails if a bad value is accepted, or the message does not say where and what to do."""
    with pytest.raises(ConfigError, match=f"^{field}: .*{remedy}"):
        build()


@pytest.mark.parametrize(
    ("settings", "field", "remedy"),
    [
        ({"layout": ParallelLayout(pp=2, vpp=2)}, "layout.vpp", "interleaved-1f1b"),
        (
            {"layout": ParallelLayout(vpp=2), "schedule": ScheduleConfig(kind="zb-v")},
            "layout.pp",
            "Set it to 2 or more",
        ),
        (
            {"layout": ParallelLayout(pp=2), "schedule": ScheduleConfig(kind="dualpipe-v")},
            "layout.vpp",
            "Set it to 2",
        ),
        (
            {
                "layout": ParallelLayout(pp=2, vpp=2),
                "schedule": ScheduleConfig(kind="interleaved-1f1b", microbatches=3),
                "train": TrainConfig(global_batch=9),
            },
            "schedule.microbatches",
            "Use a multiple of 2",
        ),
        (
            {
                "layout": ParallelLayout(pp=2, vpp=2),
                "schedule": ScheduleConfig(kind="dualpipe-v", microbatches=2),
            },
            "schedule.microbatches",
            "Use at least 4",
        ),
        (
            {"layout": ParallelLayout(pp=2), "schedule": ScheduleConfig(stage_weights=(1.0,))},
            "schedule.stage_weights",
            "one weight per stage",
        ),
        ({"layout": ParallelLayout(tp=3)}, "model.heads", "layout.tp = 3"),
        ({"layout": ParallelLayout(pp=8)}, "model.layers", "at least one block"),
        ({"layout": ParallelLayout(dp=3)}, "train.global_batch", "Use a multiple of 12"),
        (
            {"layout": ParallelLayout(pp=2), "schedule": ScheduleConfig(layers_per_stage=(3, 2))},
            "schedule.layers_per_stage",
            "one count per stage",
        ),
        (
            {"device": DeviceConfig(kind="cuda"), "pace": PaceConfig(layer_ms=1.0)},
            "pace",
            "Set every pace to 0",
        ),
        (
            {
                "layout": ParallelLayout(dp=2),
                "device": DeviceConfig(kind="cuda", backend="nccl"),
                "faults": (parse_fault("slow_link:rank=0,axis=dp,delay_ms=1"),),
            },
            "fault slow_link",
            "device.backend to gloo",
        ),
        (
            {
                "layout": ParallelLayout(dp=4),
                "train": TrainConfig(global_batch=16),
                "device": DeviceConfig(kind="cuda"),
                "data_parallel": DataParallelConfig(zero=3, shard_ranks=2),
                "faults": (parse_fault("slow_link:rank=0,axis=dp,delay_ms=1"),),
            },
            "fault slow_link",
            "shard_ranks to 0",
        ),
        (
            {"faults": (parse_fault("sequence_imbalance:delay_ms=1"),)},
            "fault sequence_imbalance",
            "documents to long_tail",
        ),
        (
            {
                "data": DataConfig(documents="long_tail"),
                "pace": PaceConfig(layer_ms=1.0),
                "faults": (parse_fault("sequence_imbalance:delay_ms=1"),),
            },
            "fault sequence_imbalance",
            "either pace.layer_ms or its delay_ms",
        ),
        (
            {"faults": (parse_fault("slow_rank:rank=1,delay_ms=1"),)},
            "fault slow_rank",
            "rank=random",
        ),
        (
            {"faults": (parse_fault("slow_link:rank=0,axis=tp,delay_ms=1"),)},
            "fault slow_link",
            "layout.tp",
        ),
    ],
)
def test_sections_that_do_not_fit_together_are_refused(settings, field, remedy):
    """Fails if a run starts that would crash in its mesh, or the message has no remedy."""
    with pytest.raises(ConfigError, match=f"^{field}: .*{remedy}"):
        TrainerConfig(**settings)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_gpu_takes_every_fault_of_compute(backend):
    """Fails if extra work, which a GPU can do like any other, is refused on one."""
    faults = (
        "slow_rank:rank=0,mode=compute,delay_ms=1",
        "heavy_stage:part=head,delay_ms=1",
        "sequence_imbalance:delay_ms=1",
    )
    TrainerConfig(
        data=DataConfig(documents="long_tail"),
        device=DeviceConfig(kind="cuda", backend=backend),
        faults=tuple(parse_fault(fault) for fault in faults),
    )


def test_a_microbatch_is_what_replicas_and_microbatches_leave_of_the_batch():
    """Fails if ranks would train on another number of sequences than the global batch."""
    config = TrainerConfig(
        layout=ParallelLayout(dp=2),
        schedule=ScheduleConfig(microbatches=4),
        train=TrainConfig(global_batch=24),
    )
    assert config.microbatch_size == 3


def test_every_setting_is_documented(project_dir):
    """Fails if a field is missing from the trainer's page, or a fault key from that of its faults."""
    page, faults = (
        (project_dir / "docs" / name).read_text(encoding="utf-8")
        for name in ("trainer.md", "trainer-faults.md")
    )
    settings = [
        f"{section.name}.{setting.name}"
        for section in fields(TrainerConfig)
        if section.name != "faults"
        for setting in fields(section.default_factory)
    ]
    keys = [key.name for key in fields(FaultSpec) if key.name != "kind"]
    assert [name for name in settings if f"`{name}`" not in page] == []
    assert [key for key in keys if f"`{key}`" not in faults] == []
