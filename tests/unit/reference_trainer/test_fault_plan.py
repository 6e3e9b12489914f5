"""Fault requests, the ranks drawn for them, and their step windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.fault_plan import FaultSpec, parse_fault, resolve


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
        ("slow_rank:rank=1", "has no delay. Set delay_ms"),
        ("slow_rank:delay_ms=1,axis=tp", "belong to slow_link"),
        ("slow_rank:delay_ms=1,start=4,stop=4", "stop = 4 is not after start = 4"),
        ("slow_rank:delay_ms=1,window=-1", "must not be negative"),
        ("slow_link:delay_ms=1", "Set axis=tp or axis=dp.*axis pp"),
        ("slow_link:delay_ms=1,axis=pp", "pp"),
        ("slow_link:axis=dp", "neither delays nor limits"),
        ("slow_link:axis=dp,delay_ms=1,mode=compute", "mode belongs to slow_rank"),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason(text, message):
    """Fails if a fault that cannot be applied is accepted."""
    with pytest.raises(ConfigError, match=message):
        parse_fault(text)


def test_without_a_window_the_fault_is_on_from_start_to_stop():
    """Fails if start or stop is off by one."""
    fault = resolve(parse_fault("slow_rank:rank=0,delay_ms=1,start=2,stop=5"), 1, seed=0)
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
    fault = resolve(spec, 1, seed)
    first = start + pair * 2 * window
    halves = [
        {fault.active(step) for step in range(begin, begin + window)}
        for begin in (first, first + window)
    ]
    assert halves in ([{True}, {False}], [{False}, {True}])


def test_the_order_of_the_blocks_is_not_always_the_same():
    """Fails if a drift of the machine would always fall on the same side."""
    fault = resolve(parse_fault("slow_rank:rank=0,delay_ms=1,window=1"), 1, seed=1)
    assert {fault.active(step) for step in range(0, 40, 2)} == {True, False}


def test_a_random_rank_comes_from_the_seed_and_reaches_every_rank():
    """Fails if the same seed means different ranks, or some rank is never chosen."""
    spec = parse_fault("slow_rank:rank=random,delay_ms=1")
    drawn = [resolve(spec, 8, seed).rank for seed in range(200)]
    assert drawn == [resolve(spec, 8, seed).rank for seed in range(200)]
    assert set(drawn) == set(range(8))


def test_a_slow_link_adds_latency_and_transfer_time():
    """Fails if the delay of a link is not latency + bytes / bandwidth."""
    spec = parse_fault("slow_link:axis=dp,rank=0,delay_ms=2,bytes_per_s=1e6")
    fault = resolve(spec, 2, seed=0)
    assert fault.wire_delay_ns(3000) == 2_000_000 + 3_000_000
