"""Trainers of other frameworks, and what is known of each without the probe.

The counts are those of one rank in one step once the set-up traffic is over. They were
taken with a dispatch mode over the communication operators, not with the probe.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from meshscope.probe.schema.layout import ParallelLayout

Counts = dict[tuple[str, str], int]
"""Operations by axis and kind (or direction)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One trainer and its answer sheet."""

    script: str
    """File name, of ``../shared/trainers`` or of this folder."""
    arguments: tuple[str, ...] = ()
    ranks: int = 4
    layout: ParallelLayout = field(default_factory=lambda: ParallelLayout(dp=4))
    counts: Counts
    last_stage: Counts = field(default_factory=dict)
    """What ranks of the last stage have besides."""
    passes: int = 1
    """Forward passes of a rank in a step; as many backward passes."""
    schedule: str | None = None
    own: bool = False
    """True for a launcher of this folder."""


_PIPELINE = ParallelLayout(pp=2, dp=2)
_CHUNKS = ParallelLayout(pp=2, dp=2, vpp=2)

CASES: dict[str, Case] = {
    "ddp": Case(script="torch_ddp.py", counts={("dp", "all_reduce"): 4}),
    "fsdp2": Case(
        script="torch_fsdp2.py",
        counts={("dp", "all_gather"): 9, ("dp", "reduce_scatter"): 5},
    ),
    "fsdp2 with tensor parallelism": Case(
        script="torch_fsdp2.py",
        arguments=("--tp", "2"),
        layout=ParallelLayout(dp=2, tp=2),
        counts={
            ("dp", "all_gather"): 9,
            ("dp", "reduce_scatter"): 5,
            ("tp", "all_reduce"): 24,
        },
    ),
    "tensor parallelism on the default group": Case(
        script="torch_fsdp2.py",
        arguments=("--tp", "2"),
        ranks=2,
        layout=ParallelLayout(tp=2),
        counts={("tp", "all_reduce"): 24},
    ),
    "hybrid sharding": Case(
        script="torch_fsdp2.py",
        arguments=("--hsdp", "2"),
        counts={
            ("dp", "all_gather"): 9,
            ("dp", "reduce_scatter"): 5,
            ("dp", "all_reduce"): 5,
        },
    ),
    "pipelining 1f1b": Case(
        script="torch_pipelining.py",
        layout=_PIPELINE,
        counts={("pp", "send"): 4, ("pp", "recv"): 4, ("dp", "all_reduce"): 2},
        passes=4,
        schedule="1f1b",
    ),
    "pipelining gpipe": Case(
        script="torch_pipelining.py",
        arguments=("--schedule", "GPipe"),
        layout=_PIPELINE,
        counts={
            ("pp", "send"): 4,
            ("pp", "recv"): 4,
            ("dp", "all_gather"): 1,
            ("dp", "reduce_scatter"): 1,
        },
        passes=4,
        schedule="gpipe",
    ),
    "pipelining interleaved": Case(
        script="torch_pipelining.py",
        arguments=("--schedule", "Interleaved1F1B"),
        layout=_CHUNKS,
        counts={
            ("pp", "send"): 12,
            ("pp", "recv"): 12,
            ("dp", "all_gather"): 2,
            ("dp", "reduce_scatter"): 2,
        },
        passes=8,
        schedule="interleaved-1f1b",
    ),
    "deepspeed zero-1": Case(
        script="deepspeed_zero.py",
        arguments=("--stage", "1"),
        counts={("dp", "all_reduce"): 6, ("dp", "all_gather"): 1},
        passes=2,
    ),
    "deepspeed zero-2": Case(
        script="deepspeed_zero.py",
        arguments=("--stage", "2"),
        counts={("dp", "all_reduce"): 11, ("dp", "all_gather"): 1},
        passes=2,
    ),
    "deepspeed zero-3": Case(
        script="deepspeed_zero.py",
        arguments=("--stage", "3"),
        counts={
            ("dp", "all_gather"): 47,
            ("dp", "reduce_scatter"): 10,
            ("dp", "all_reduce"): 1,
        },
        passes=2,
    ),
    "deepspeed pipeline module": Case(
        script="deepspeed_pipeline.py",
        own=True,
        layout=_PIPELINE,
        counts={
            ("pp", "send"): 4,
            ("pp", "recv"): 4,
            ("pp", "all_reduce"): 1,
            ("pp", "broadcast"): 1,
            ("dp", "all_reduce"): 2,
        },
        last_stage={("dp", "all_reduce"): 1},
        passes=4,
        schedule="1f1b",
    ),
    "hugging face ddp": Case(
        script="hf_trainer.py",
        arguments=("--mode", "ddp"),
        counts={("dp", "all_reduce"): 2, ("dp", "broadcast"): 1, ("dp", "all_gather"): 1},
        passes=2,
    ),
    # The all-reduce is that of the gradient norm. It is made inside a DTensor operator,
    # where a dispatch mode does not see it; the CPU profiler does.
    "hugging face fsdp2": Case(
        script="hf_trainer.py",
        arguments=("--mode", "fsdp2"),
        counts={
            ("dp", "all_gather"): 23,
            ("dp", "reduce_scatter"): 6,
            ("dp", "all_reduce"): 1,
        },
        passes=2,
    ),
    "accelerate ddp": Case(
        script="hf_trainer.py",
        arguments=("--mode", "accelerate-ddp"),
        counts={("dp", "all_reduce"): 1, ("dp", "broadcast"): 1},
        passes=2,
    ),
    "accelerate fsdp2": Case(
        script="hf_trainer.py",
        arguments=("--mode", "accelerate-fsdp2"),
        counts={("dp", "all_gather"): 22, ("dp", "reduce_scatter"): 6},
        passes=2,
    ),
    "lightning ddp": Case(
        script="lightning_fit.py",
        arguments=("--strategy", "ddp"),
        counts={("dp", "all_reduce"): 2, ("dp", "broadcast"): 1},
    ),
    "lightning fsdp1": Case(
        script="lightning_fit.py",
        arguments=("--strategy", "fsdp"),
        counts={
            ("dp", "all_gather"): 9,
            ("dp", "reduce_scatter"): 5,
            ("dp", "broadcast"): 1,
        },
    ),
    "lightning fsdp2": Case(
        script="lightning_fit.py",
        arguments=("--strategy", "fsdp2"),
        counts={
            ("dp", "all_gather"): 9,
            ("dp", "reduce_scatter"): 5,
            ("dp", "broadcast"): 1,
        },
    ),
    "megatron-core 1f1b": Case(
        script="megatron_schedule.py",
        own=True,
        layout=_PIPELINE,
        counts={("pp", "send"): 4, ("pp", "recv"): 4, ("dp", "all_reduce"): 4},
        passes=4,
        schedule="1f1b",
    ),
    # On ranks of the last stage the loss over the vocabulary is summed in groups of one.
    "megatron-core interleaved with its distributed optimizer and experts": Case(
        script="megatron_gpt.py",
        own=True,
        layout=ParallelLayout(pp=2, dp=2, ep=2, vpp=2),
        counts={
            ("pp", "send"): 12,
            ("pp", "recv"): 12,
            ("ep", "all_to_all"): 48,
            ("ep", "all_gather"): 8,
            ("dp", "all_gather"): 8,
            ("dp", "reduce_scatter"): 4,
            ("other", "all_reduce"): 1,
        },
        last_stage={("tp", "all_reduce"): 12},
        passes=8,
        schedule="interleaved-1f1b",
    ),
    # Dispatch mode, but for what happens inside DTensor operators: one all-reduce of the
    # gradient norm on each axis, three of the loss over the vocabulary. The CPU profiler
    # counts 22 all-reduces in all.
    "torchtitan fsdp2 with tensor parallelism": Case(
        script="torchtitan_llama.py",
        own=True,
        arguments=("--tensor", "2"),
        layout=ParallelLayout(dp=2, tp=2),
        counts={
            ("dp", "all_gather"): 15,
            ("dp", "reduce_scatter"): 8,
            ("dp", "all_reduce"): 5,
            ("tp", "all_gather"): 26,
            ("tp", "reduce_scatter"): 26,
            ("tp", "all_reduce"): 17,
        },
    ),
    "torchtitan interleaved": Case(
        script="torchtitan_llama.py",
        own=True,
        arguments=("--stages", "2", "--schedule", "Interleaved1F1B"),
        layout=_CHUNKS,
        counts={
            ("pp", "send"): 12,
            ("pp", "recv"): 12,
            ("pp", "all_reduce"): 1,
            ("dp", "all_gather"): 4,
            ("dp", "reduce_scatter"): 4,
            ("dp", "all_reduce"): 5,
        },
        passes=8,
        schedule="interleaved-1f1b",
    ),
}
