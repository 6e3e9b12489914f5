"""All live jobs: every fault that the trainer has, and healthy jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.truth.live.cases import STEPS, LiveCase, Way, steps_of_pairs

from meshscope.probe.schema.layout import ParallelLayout

REPLICAS = ParallelLayout(dp=2)
MEMBERS = ParallelLayout(tp=2)
STAGES = ParallelLayout(pp=2)
PIPELINE = ParallelLayout(pp=2, dp=2)
TENSOR = ParallelLayout(tp=2, dp=2)
SCATTERED = steps_of_pairs(36)
"""Where single steps scatter: ranks share cores inside a pass, or chance makes microbatches longer."""
PACKED = ("data.documents='long_tail'", "data.median_document=4")
"""Microbatches of unequal work."""
TRIALS = 2
"""Runs of a healthy job with the same seed."""
HOT_RANK = 1
"""The rank of the expert that the routers prefer."""


def cases() -> list[LiveCase]:
    """Return all jobs of the suite."""
    return [
        *_slow_ranks(),
        *_slow_links(),
        *_uneven_work(),
        *_host_faults(),
        *_without_pairs(),
        *_several(),
        *(healthy(layout, trial) for layout in (PIPELINE, TENSOR) for trial in range(TRIALS)),
    ]


def steps_for(layout: ParallelLayout) -> int:
    """Return the steps of a job: more where single ones scatter, as ranks share cores inside a pass."""
    return SCATTERED if max(layout.tp, layout.cp, layout.ep) > 1 else STEPS


def slow_rank(layout: ParallelLayout, rank: int, mode: str = "sleep") -> LiveCase:
    """Return a job whose rank takes 20 ms longer for each microbatch."""
    return LiveCase(
        row=f"slow rank, {mode}",
        layout=layout,
        faults=(f"slow_rank:rank={rank},mode={mode},delay_ms=20",),
        kinds=("straggler_rank",),
        place={"rank": rank},
        blocks=layout.pp,
        pace_ms=20,
        steps=steps_for(layout),
    )


def replicated(rank: int, slow_pass: str) -> LiveCase:
    """Return a job with torch's DDP whose rank takes 20 ms longer in a pass."""
    return LiveCase(
        row="slow rank, DDP of torch",
        layout=ParallelLayout(dp=4),
        faults=(f"slow_rank:rank={rank},delay_ms=20",),
        kinds=("straggler_rank",),
        place={"rank": rank},
        slow_pass=slow_pass,
        steps=SCATTERED,
    )


def slow_link(layout: ParallelLayout, axis: str, rank: int, delay_ms: float) -> LiveCase:
    """Return a job in which one group's transfers along an axis take longer."""
    return LiveCase(
        row=f"slow {axis} group",
        layout=layout,
        faults=(f"slow_link:rank={rank},axis={axis},delay_ms={delay_ms}",),
        kinds=("slow_link",),
        place={"axis": axis, "member": rank},
        blocks=layout.pp,
        pace_ms=20,
        steps=steps_for(layout),
    )


def healthy(layout: ParallelLayout, trial: int) -> LiveCase:
    """Return a job without a fault."""
    row = "healthy, twice the same seed"
    return LiveCase(row=row, layout=layout, trial=trial, blocks=layout.pp, pace_ms=20)


def _slow_ranks() -> Iterator[LiveCase]:
    yield from (slow_rank(PIPELINE, rank) for rank in range(4))
    yield from (slow_rank(TENSOR, rank) for rank in (1, 2))
    yield from (slow_rank(PIPELINE, rank, "compute") for rank in (1, 2))
    yield slow_rank(TENSOR, 3, "compute")
    for layout in (REPLICAS, PIPELINE):
        yield LiveCase(
            row="slow rank, stopped",
            layout=layout,
            # Stops are long against the pace: sleep goes on while a process is stopped.
            faults=("slow_rank:rank=1,mode=duty,stopped_frac=0.5,period_ms=200",),
            kinds=("straggler_rank",),
            place={"rank": 1},
        )
    yield LiveCase(
        row="slow tensor-parallel member",
        layout=MEMBERS,
        faults=("slow_rank:tp=1,delay_ms=40",),
        kinds=("straggler_rank",),
        place={"rank": 1},
        steps=steps_for(MEMBERS),
    )
    yield from (
        replicated(rank, slow_pass) for rank, slow_pass in ((1, "forward"), (2, "backward"))
    )
    skew = "clock_skew:rank=3,offset_ms=300,drift_ppm=50"
    yield LiveCase(
        row="slow rank, wrong clock",
        layout=PIPELINE,
        faults=("slow_rank:rank=3,delay_ms=20", skew),
        kinds=("straggler_rank",),
        place={"rank": 3},
        pace_ms=20,
    )


def _slow_links() -> Iterator[LiveCase]:
    yield from (slow_link(PIPELINE, "dp", rank, 60) for rank in (0, 3))
    yield slow_link(TENSOR, "dp", 1, 60)
    yield from (slow_link(TENSOR, "tp", rank, 5) for rank in (0, 3))
    context = slow_link(ParallelLayout(cp=2, dp=2), "cp", 0, 8)
    yield LiveCase(
        row=context.row,
        layout=context.layout,
        faults=context.faults,
        kinds=context.kinds,
        place=context.place,
        settings=("context.form='all_to_all'",),
        steps=context.steps,
    )
    experts = slow_link(ParallelLayout(dp=4, ep=2), "ep", 0, 8)
    yield LiveCase(
        row=experts.row,
        layout=experts.layout,
        faults=experts.faults,
        kinds=experts.kinds,
        place=experts.place,
        settings=("moe.experts=4", "schedule.microbatches=2"),
        steps=experts.steps,
    )
    yield LiveCase(
        row="slow pp link",
        layout=PIPELINE,
        faults=("slow_link:axis=pp,rank=0,peer=2,delay_ms=20",),
        kinds=("slow_link",),
        place={"axis": "pp", "member": 2},
        pace_ms=20,
    )
    yield LiveCase(
        row="slow dp group, hidden",
        layout=TENSOR,
        faults=("slow_link:axis=dp,rank=0,first=1,delay_ms=10",),
        kinds=("slow_link",),
        place={"axis": "dp", "member": 0},
        settings=("train.bucket_bytes=65536",),
        pace_ms=20,
        steps=steps_for(TENSOR),
    )


def _uneven_work() -> Iterator[LiveCase]:
    # The same work on both stages: half of it, in the one block that each has. A sleep lasts longer
    # than asked, so that both stages sleep as often in the first job too: one of them hardly at all.
    even = tuple(f"heavy_stage:part=layers,stage={stage},delay_ms=7.5" for stage in (0, 1))
    for row, part, stage in (
        ("unbalanced stage", "layers,stage=0", 0),
        ("heavy embedding", "embed", 0),
        ("heavy output head", "head", 1),
    ):
        yield LiveCase(
            row=row,
            layout=STAGES,
            faults=(
                f"heavy_stage:part={part},delay_ms=14.9",
                f"heavy_stage:part=layers,stage={1 - stage},delay_ms=0.1",
            ),
            even=even,
            kinds=("stage_imbalance", "embedding_imbalance"),
            place={"stage": stage},
            way=Way.AGAINST,
            pace_ms=20,
            steps=25,
        )
    for layout, reported in ((REPLICAS, False), (PIPELINE, False), (REPLICAS, True)):
        yield LiveCase(
            row="unequal sequences" + (", described" if reported else ""),
            layout=layout,
            faults=("sequence_imbalance:",),
            kinds=("sequence_imbalance",),
            settings=(*PACKED, f"data.tell_sequences={str(reported).lower()}"),
            pace_ms=20,
            steps=SCATTERED,
        )
    yield LiveCase(
        row="hot expert",
        layout=ParallelLayout(dp=2, ep=2),
        faults=(f"hot_expert:expert={HOT_RANK},bias=10",),
        kinds=("expert_imbalance",),
        place={"rank": HOT_RANK, "axis": "ep"},
        # Cores that others use too are as busy when the tokens are spread evenly.
        way=Way.PLACED,
        settings=(
            *("moe.experts=2", "moe.experts_per_token=1", "model.hidden=128"),
            *("model.ffn=4096", "model.seq_len=64", "train.global_batch=16"),
        ),
        pace_ms=0,
    )


def _host_faults() -> Iterator[LiveCase]:
    one, everybody = {"rank": 1}, {}
    for row, fault, kind, place in (
        ("gc pause", "gc_pause:rank=1,delay_ms=60", "gc_pause", one),
        ("data stall, one rank", "data_stall:rank=1,delay_ms=60", "data_stall", one),
        ("data stall, all ranks", "data_stall:rank=all,delay_ms=60", "data_stall", everybody),
        ("item sync", "item_sync:delay_ms=15", "host_stall", everybody),
    ):
        yield LiveCase(
            row=row, layout=REPLICAS, faults=(fault,), kinds=(kind,), place=place, pace_ms=15
        )
    yield LiveCase(
        row="checkpoint, all ranks",
        layout=REPLICAS,
        faults=("checkpoint_stall:rank=all,delay_ms=80,bytes_per_s=1e8",),
        kinds=("checkpoint_stall",),
        pace_ms=15,
    )


def together(
    row: str,
    layout: ParallelLayout,
    steps: int,
    faults: Sequence[tuple[str, str, dict[str, object]]],
    settings: tuple[str, ...] = (),
) -> Iterator[LiveCase]:
    """Yield a case for each fault of one job: what is asked for, kind of the finding, its place."""
    places = [(kind, place) for _, kind, place in faults]
    for part, (kind, place) in enumerate(places):
        yield LiveCase(
            row=row,
            layout=layout,
            faults=tuple(request for request, _, _ in faults),
            kinds=(kind,),
            place=place,
            part=part,
            beside=(*places[:part], *places[part + 1 :]),
            settings=settings,
            blocks=layout.pp,
            pace_ms=20,
            steps=steps,
        )


def _several() -> Iterator[LiveCase]:
    slow = ("slow_rank:rank=1,delay_ms=20", "straggler_rank", {"rank": 1})
    behind = ("slow_rank:rank=2,delay_ms=10", "straggler_rank", {"rank": 2})
    link = (
        "slow_link:axis=pp,rank=0,peer=2,delay_ms=20",
        "slow_link",
        {"axis": "pp", "member": 2},
    )
    group = (
        "slow_link:rank=0,axis=dp,delay_ms=60",
        "slow_link",
        {"axis": "dp", "member": 0},
    )
    uneven = ("sequence_imbalance:", "sequence_imbalance", {})
    pause = ("gc_pause:rank=0,delay_ms=60", "gc_pause", {"rank": 0})
    yield from together("slow rank and slow pp link", PIPELINE, steps_of_pairs(12), (slow, link))
    yield from together("slow rank behind another", PIPELINE, steps_of_pairs(12), (slow, behind))
    yield from together(
        "slow rank, unequal sequences", REPLICAS, steps_of_pairs(36), (slow, uneven), PACKED
    )
    yield from together(
        "slow rank, group and pauses", PIPELINE, steps_of_pairs(48), (slow, group, pause)
    )


def _without_pairs() -> Iterator[LiveCase]:
    few = ("schedule.microbatches=2", "train.global_batch=4")
    yield LiveCase(
        row="few microbatches",
        layout=STAGES,
        kinds=("pipeline_bubble",),
        place={"axis": "pp"},
        way=Way.ALWAYS,
        settings=few,
        steps=13,
        pace_ms=20,
    )
    yield LiveCase(
        row="clock offset and drift",
        layout=REPLICAS,
        faults=("clock_skew:rank=1,offset_ms=300,drift_ppm=50",),
        way=Way.ALWAYS,
        steps=25,
        pace_ms=20,
    )
    yield LiveCase(
        row="memory growth",
        layout=REPLICAS,
        faults=("memory_growth:rank=1,megabytes=4,start=3",),
        kinds=("memory_headroom",),
        place={"rank": 1},
        way=Way.ALWAYS,
        steps=31,
        pace_ms=20,
    )
    yield from (broken(fault) for fault in ("hang", "crash", "crash,mode=kill"))


def broken(fault: str) -> LiveCase:
    """Return a job that a rank ends in step 6: by standing still, or by dying."""
    kind, _, way = fault.partition(",")
    return LiveCase(
        row={"hang": "rank hangs", "crash": "rank crashes"}[kind] + (", killed" if way else ""),
        layout=REPLICAS,
        faults=(f"{kind}:rank=1,start=6{',' if way else ''}{way}",),
        kinds=(kind,),
        place={"ranks": [1]},
        way=Way.FATAL,
    )
