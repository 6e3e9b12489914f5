"""Fault requests, the ranks drawn for them, and their step windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.fault_plan import FaultSpec, parse_fault, resolve


def test_the_command_line_form_is_read_with_types():
    """Fails if a value is dropped or stays text."""
    fault = parse_fault("slow_rank:rank=5,mode=compute,delay_ms=40,start=2,stop=9,window=3,seed=1")
    assert fault == FaultSpec(
        kind="slow_rank",
        rank=5,
        mode="compute",
        delay_ms=40.0,
        start=2,
        stop=9,
        window=3,
        seed=1,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow_disk:delay_ms=1", "slow_disk"),
        ("slow_rank:delay=1", "unknown setting 'delay'.*Known settings: axis"),
        ("slow_rank:delay_ms=soon", "delay_ms"),
        ("slow_rank:rank=1", "has no size. Set delay_ms"),
        ("slow_rank:delay_ms=1,axis=tp", "axis belongs to slow_link. Remove it"),
        ("slow_rank:delay_ms=1,rank=1,tp=1", "a rank and coordinates"),
        ("slow_rank:delay_ms=1,rank=all", "cannot have rank=all"),
        ("slow_rank:delay_ms=1,mode=kill", "Choose from sleep, compute, duty"),
        ("slow_rank:mode=duty,stopped_frac=0.95", "stopped_frac: 0.95 .*at most 0.9"),
        ("slow_rank:delay_ms=1,stopped_frac=0.5", "mixes modes"),
        ("heavy_stage:delay_ms=1", "Set part=layers, part=embed or part=head"),
        ("heavy_stage:delay_ms=1,part=layers", "Set stage with part=layers"),
        ("heavy_stage:delay_ms=1,part=head,rank=1", "rank belongs to"),
        ("gc_pause:rank=0,delay_ms=5,every=0", "every: 0 is out of range. Set it to at least 1"),
        ("crash:rank=0,start=3,stop=5", "happens once"),
        ("clock_skew:rank=0,offset_ms=1,start=3", "lasts the whole run. Remove start"),
        ("slow_rank:delay_ms=10,delay_ms=20", "delay_ms is given twice. Remove one"),
        ("slow_rank:delay_ms=1,period_ms=100", "has no periods. Remove period_ms"),
        ("gc_pause:rank=0,delay_ms=3000", "delay_ms: 3000.0 .*at most 500"),
        ("clock_skew:rank=0", "has no size. Set offset_ms"),
        ("memory_growth:rank=0", "Set megabytes"),
        ("slow_rank:delay_ms=1,start=4,stop=4", "stop = 4 is not after start = 4"),
        ("slow_rank:delay_ms=1,window=-1", "window: -1 .*at least 0"),
        ("slow_rank:delay_ms=nan", "delay_ms: nan .*at least 0"),
        ("slow_link:axis=dp,bytes_per_s=inf", "bytes_per_s: inf .*a finite number"),
        ("slow_link:axis=dp,bytes_per_s=0.1", "bytes_per_s is below 1. Set it to 1 or more"),
        ("clock_skew:drift_ppm=-2e6", "drift_ppm: -2000000.0 .*at least -100000"),
        ("slow_rank:rank=x", "rank: .*Write a whole number, or one of random, all"),
        ("slow_link:delay_ms=1", "Set axis=tp, axis=pp or axis=dp"),
        ("slow_link:axis=dp", "has no size. Set delay_ms .* or bytes_per_s"),
        ("slow_link:axis=dp,delay_ms=1,mode=compute", "mode belongs to slow_rank"),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason(text, message):
    """Fails if a fault that cannot be applied is accepted."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text)


def test_without_a_window_the_fault_is_on_from_start_to_stop():
    """Fails if start or stop is off by one."""
    fault = resolve(
        parse_fault("slow_rank:rank=0,delay_ms=1,start=2,stop=5"), ParallelLayout(), seed=0
    )
    assert [step for step in range(8) if fault.active(step)] == [2, 3, 4]


@given(
    seed=st.integers(0, 2**31),
    window=st.integers(1, 5),
    start=st.integers(0, 7),
    pair=st.integers(0, 9),
)
def test_each_pair_of_blocks_has_the_fault_in_exactly_one(seed, window, start, pair):
    """Fails if a pair is unbalanced, so that its difference is no paired comparison."""
    spec = FaultSpec(kind="slow_rank", rank=0, delay_ms=1.0, start=start, window=window)
    fault = resolve(spec, ParallelLayout(), seed)
    first = start + pair * 2 * window
    halves = [
        {fault.active(step) for step in range(begin, begin + window)}
        for begin in (first, first + window)
    ]
    assert halves in ([{True}, {False}], [{False}, {True}])


def test_the_order_of_the_blocks_is_not_always_the_same():
    """Fails if a drift of the machine would always fall on the same side."""
    fault = resolve(parse_fault("slow_rank:rank=0,delay_ms=1,window=1"), ParallelLayout(), seed=1)
    assert {fault.active(step) for step in range(0, 40, 2)} == {True, False}


def test_a_random_rank_comes_from_the_seed_and_reaches_every_rank():
    """Fails if the same seed means different ranks, or some rank is never chosen."""
    spec = parse_fault("slow_rank:rank=random,delay_ms=1")
    layout = ParallelLayout(dp=8)
    drawn = [resolve(spec, layout, seed).rank for seed in range(200)]
    assert drawn == [resolve(spec, layout, seed).rank for seed in range(200)]
    assert set(drawn) == set(range(8))


def test_a_slow_link_adds_latency_and_transfer_time():
    """Fails if the delay of a link is not latency + bytes / bandwidth."""
    spec = parse_fault("slow_link:axis=dp,rank=0,delay_ms=2,bytes_per_s=1e6")
    fault = resolve(spec, ParallelLayout(dp=2), seed=0)
    assert fault.transfer_ns(3000) == 2_000_000 + 3_000_000


def test_a_rank_can_be_named_by_its_place_in_the_mesh():
    """Fails if coordinates mean another rank than those of the layout."""
    layout = ParallelLayout(tp=2, pp=2, dp=2)
    spec = parse_fault("slow_rank:tp=1,dp=1,delay_ms=1")
    rank = resolve(spec, layout, seed=0).rank
    assert rank is not None
    assert layout.coordinates(rank) | {"cp": 0, "ep": 0} == {
        "pp": 0,
        "dp": 1,
        "tp": 1,
        "cp": 0,
        "ep": 0,
    }


def test_a_context_parallel_member_can_be_the_faulty_one():
    """Fails if a fault can only be on the first of the ranks that share a sequence."""
    layout = ParallelLayout(cp=2, dp=2)
    spec = parse_fault("slow_rank:cp=1,dp=1,delay_ms=1")
    spec.check_mesh(layout)
    assert layout.coordinates(resolve(spec, layout, seed=0).rank)["cp"] == 1
    assert spec.place(layout) == layout.rank(dp=1, cp=1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow_rank:cp=1,delay_ms=1", "cp = 1 is outside 0..0"),
        ("slow_rank:rank=8,delay_ms=1", "outside 0..7"),
        ("slow_rank:tp=2,delay_ms=1", "tp = 2 is outside 0..1"),
        ("heavy_stage:part=layers,stage=2,delay_ms=1", "stage = 2 is outside 0..1"),
        ("slow_link:axis=cp,rank=0,delay_ms=1", "one rank per group"),
        ("slow_link:axis=pp,rank=0,peer=1,delay_ms=1", "no link"),
        ("slow_link:axis=pp,peer=1,delay_ms=1", "Name both ends"),
    ],
)
def test_a_place_outside_the_mesh_is_refused(text, message):
    """Fails if a fault is accepted that no rank will ever apply."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text).check_mesh(ParallelLayout(tp=2, pp=2, dp=2))


def test_some_faults_hit_every_rank_or_no_rank_in_particular():
    """Fails if a fault on all ranks, or on a stage, is given to one random rank."""
    layout = ParallelLayout(dp=2)
    everywhere = resolve(parse_fault("data_stall:rank=all,delay_ms=1"), layout, seed=0)
    assert everywhere.hits(0)
    assert everywhere.hits(1)
    assert resolve(parse_fault("item_sync:every=2"), layout, seed=0).rank is None


def test_a_periodic_fault_is_on_once_per_period():
    """Fails if a checkpoint every few steps happens in every step."""
    fault = resolve(
        parse_fault("checkpoint_stall:rank=all,delay_ms=1,start=1,every=3"),
        ParallelLayout(),
        seed=0,
    )
    assert [step for step in range(9) if fault.active(step)] == [1, 4, 7]


def test_a_crash_is_in_its_step_only():
    """Fails if a rank would crash again after a restart that skips the step."""
    fault = resolve(parse_fault("crash:rank=0,start=2"), ParallelLayout(), seed=0)
    assert [step for step in range(5) if fault.active(step)] == [2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slow_rank:delay_ms=1,start=100", "start = 100 is behind the last of 8 steps"),
        ("hang:rank=0,start=8", "Set it to 7 or less, or train.steps to 9 or more"),
        ("slow_rank:delay_ms=1,window=5", "8 steps .* do not fill two blocks .* Set window to 4"),
        ("slow_rank:delay_ms=1,start=2,stop=5,window=2", "3 steps .* Set window to 1"),
        ("slow_rank:delay_ms=1,start=7,window=2", "Remove window, or have 4 steps"),
    ],
)
def test_a_fault_that_no_step_has_is_refused(text, message):
    """Fails if a fault is accepted that is never on, or that nothing can be compared with."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text).check_steps(8)
    parse_fault("slow_rank:delay_ms=1,start=2,window=3").check_steps(8)


def test_a_wrong_clock_is_in_no_step():
    """Fails if steps count as faulty of which only the finished capture is changed."""
    fault = resolve(parse_fault("clock_skew:rank=0,offset_ms=1"), ParallelLayout(), seed=0)
    assert not any(fault.active(step) for step in range(5))
