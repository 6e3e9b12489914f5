"""The formulas of the plan beside recorded trainings: counts and bytes of another program."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed.recorded_training import recorded_run

from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.volumes.compare import expected_and_seen
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import (
    ModelConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from meshscope.reference_trainer.config.parallel_config import (
    DataParallelConfig,
    MemoryConfig,
    MoeConfig,
    TensorConfig,
)

pytestmark = pytest.mark.distributed

MODEL = ModelConfig(layers=4, hidden=64, ffn=128, heads=4, vocab=128, seq_len=32)
KEPT = ("tp", "all_gather", "fewer_per_layer", 2)
"""The trainer keeps what it gathers for the backward; the plan gathers again: 2 a dense layer."""
STOPS = ("tp", "all_reduce", "early_stop", 1)
"""torch's checkpoint computes no further than the last tensor that it needs."""
HOP = ("cp", "send", "ring_return", 1)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("sizes", "parts", "differences"),
    [
        ({"tp": 2, "pp": 2}, {}, []),
        ({"tp": 2}, {"tensor": TensorConfig(sequence_parallel=True)}, [KEPT]),
        ({"tp": 2}, {"memory": MemoryConfig(recompute="full")}, [STOPS]),
        ({"dp": 2}, {"data_parallel": DataParallelConfig(zero=1)}, []),
        ({"dp": 2}, {"data_parallel": DataParallelConfig(zero=2)}, []),
        ({"dp": 2}, {"data_parallel": DataParallelConfig(zero=3)}, []),
        ({"dp": 2, "ep": 2}, {"moe": MoeConfig(experts=4)}, []),
        ({"cp": 2}, {}, [HOP]),
    ],
    ids=["tp-pp", "sequence", "recompute", "zero1", "zero2", "zero3", "experts", "ring"],
)
def test_recorded_volumes(tmp_path: Path, sizes, parts, differences):
    """Fails when formulas and records of a healthy training differ where no difference is known."""
    config = TrainerConfig(
        layout=ParallelLayout(**sizes),
        model=MODEL,
        train=TrainConfig(steps=4, global_batch=16),
        schedule=ScheduleConfig(kind="1f1b", microbatches=4),
        **parts,
    )
    assert set(recorded_run(config, tmp_path).codes) == {0}
    trace = load_trace(tmp_path / "run")
    rows = expected_and_seen(trace, step_windows(trace)).rows
    assert [(r.axis, r.kind, r.code, r.amount) for r in rows if r.code] == differences
    assert sum(row.expected_bytes > 0 for row in rows) >= 1
    findings = [one for one in diagnose(trace).findings if one.kind == "communication_volume"]
    assert [one.cause for one in findings] == [
        code for _, _, code, _ in differences if code != "early_stop"
    ]
