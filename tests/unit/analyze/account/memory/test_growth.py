"""Memory that grows is distinguished from memory that fills up, jumps, or breathes."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.memory.growth import growing_ranks

MIB = 1 << 20
STEPS = 24


def memory_of(held, **facts):
    """Return a capture with one sample a step: {rank: bytes by step}."""
    rows = [
        {
            "rank": rank,
            "step": step,
            "time_ns": step,
            "phase": "step_start",
            "rss_bytes": size(step),
        }
        | facts
        for rank, size in held.items()
        for step in range(STEPS)
    ]
    return trace_of(ranks=tuple(held), memory=rows)


def steady(step):
    """Return memory that breathes by a percent."""
    return 500 * MIB + (step % 3) * 3 * MIB


def test_the_rank_that_grows_is_named_with_its_slope():
    """A leak would be found when the job is killed."""
    leak = memory_of(
        {0: steady, 1: lambda step: 400 * MIB + step * 8 * MIB}, capacity_bytes=2048 * MIB
    )
    (row,) = growing_ranks(leak).to_dict("records")
    assert (row["rank"], row["is_device"]) == (1, False)
    assert row["per_step_bytes"] == pytest.approx(8 * MIB)
    assert row["held_bytes"] == 400 * MIB + 23 * 8 * MIB
    assert row["capacity_bytes"] == 2048 * MIB


def test_a_device_is_judged_by_what_its_allocator_gave_out():
    """A growing process would be called a device that fills up, or the reverse."""
    trace = memory_of({0: lambda step: 400 * MIB + step * 8 * MIB}, allocated_bytes=100 * MIB)
    assert growing_ranks(trace).empty


@pytest.mark.parametrize(
    "held",
    [
        steady,
        lambda step: 400 * MIB + (200 * MIB if step > 15 else 0),
        lambda step: 400 * MIB + min(step, 6) * 50 * MIB,
        lambda step: 400 * MIB + step * 1024,
        lambda step: 400 * MIB + step * 320 * 1024,
        lambda step: 900 * MIB - step * 8 * MIB,
    ],
    ids=[
        "breathes",
        "jumps once",
        "fills and stays",
        "hardly grows",
        "the probe's ring fills",
        "shrinks",
    ],
)
def test_other_changes_are_no_growth(held):
    """Caches, checkpoints and warm-up would be called leaks."""
    assert growing_ranks(memory_of({0: held})).empty


def test_without_samples_nothing_grows():
    """A capture without memory would fail to be diagnosed."""
    assert growing_ranks(trace_of()).empty
    assert growing_ranks(memory_of({0: lambda step: None})).empty
