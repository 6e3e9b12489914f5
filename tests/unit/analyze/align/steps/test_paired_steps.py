"""Steps with something are compared with the steps without it."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.align.steps.paired_steps import longer_beyond_chance, longer_steps
from meshscope.analyze.align.steps.windows import StepWindows

RANKS = 3


def windows_of(lengths_ms):
    """Return the windows of steps of some lengths, one after the other, on ranks a little apart."""
    ends = np.cumsum([0, *lengths_ms]) * 1_000_000
    rows = [
        {"rank": rank, "step": step, "start_ns": ends[step] + rank, "end_ns": ends[step + 1] + rank}
        for rank in range(RANKS)
        for step in range(len(lengths_ms))
    ]
    return StepWindows(
        frame=pd.DataFrame(rows).assign(tokens=-1),
        steps=np.arange(len(lengths_ms)),
        ranks=np.arange(RANKS),
        shift_ns={},
        default_shift_ns=0,
        run=np.zeros(len(lengths_ms), np.int64),
        chained=True,
        step_time_ns=float(np.mean(lengths_ms)) * 1e6,
    )


def test_what_comes_and_goes_costs_what_its_steps_are_longer():
    """A user who reads the step times would find another cost than the one reported."""
    lengths = [130, 134, 130, 134, 100, 102, 100, 102, 130, 134, 130, 134, 100, 102, 100, 102]
    longer = longer_steps(windows_of(lengths), [(0, 3), (8, 11)])
    assert longer[:2] == (8, 8)
    assert longer.longer_ns == pytest.approx(31e6)
    # Variances 32/7 and 8/7 ms^2 of eight steps each.
    assert longer.error_ns == pytest.approx(np.sqrt(40 / 7 / 8) * 1e6)
    assert longer.of_mean_step() == pytest.approx(31e6 / 2)
    assert longer.of_mean_step(-1.96) == pytest.approx((31e6 - 1.96 * longer.error_ns) / 2)


@pytest.mark.parametrize("runs", [[], [(4, 15)], [(0, 0), (2, 3)], [(0, 5), (7, 15)]])
def test_what_changed_once_or_hardly_ever_tells_nothing(runs):
    """What began with another cause, or three steps, would be taken for a measurement."""
    assert longer_steps(windows_of([100] * 16), runs) is None


def flags(pattern):
    """Return which steps have something, of a text with an ``x`` for each that has."""
    return np.array([letter == "x" for letter in pattern])


def test_two_things_that_come_and_go_are_separated():
    """What one of them costs would be charged to the other as well."""
    first = flags("xx..xx..xx..xx..xx..")
    second = flags("x.x...x.x.x.xx......")
    lengths = 100.0 - 7.0 * first + 3.0 * second
    assert longer_beyond_chance(lengths, [first, second]) == pytest.approx([-7.0, 3.0])


def test_what_always_comes_together_is_charged_once():
    """Twice the difference would be taken back where two ranks are slow in the same steps."""
    steps = flags("xxx...xxx...xxx...")
    assert longer_beyond_chance(50.0 + 8.0 * steps, [steps, steps]) == pytest.approx([4.0, 4.0])


@pytest.mark.parametrize("pattern", ["", "x", "x" * 12, "." * 12, "xxxxxx......"])
def test_what_hardly_changes_tells_nothing(pattern):
    """A drift, or the mean step itself, would be taken for what a cause makes."""
    lengths = 100.0 - 7.0 * flags(pattern)
    assert longer_beyond_chance(lengths, [flags(pattern)]) is None


def test_chance_is_left_out_and_what_is_there_is_kept():
    """Noise would change every price, or a true difference would be lost in it."""
    random = np.random.default_rng(3)
    steps = flags("xxx..." * 6)
    error = np.sqrt(4 / 36)  # that of a difference of two means of 18 steps
    found = [
        [
            longer_beyond_chance(random.standard_normal(36) - true * steps, [steps])[0]
            for _ in range(400)
        ]
        for true in (0.0, 6 * error)
    ]
    by_chance = np.sqrt(np.mean(np.square(found[0])))
    assert by_chance < 0.75 * error
    assert np.mean(np.equal(found[0], 0.0)) > 0.6
    assert np.mean(found[1]) == pytest.approx(-6 * error, rel=0.1)


@pytest.mark.parametrize("pattern", ["....xxxxxxxx....", "....xxxxxxxx........xxxx"])
def test_of_few_runs_only_what_is_far_beyond_chance_counts(pattern):
    """Half an hour with three spells of a fault would be repriced by how they happened to fall."""
    random = np.random.default_rng(5)
    steps = flags(pattern)
    noise = random.standard_normal((400, len(steps)))
    by_chance = [longer_beyond_chance(row, [steps])[0] != 0.0 for row in noise]
    assert np.mean(by_chance) < 0.13
    kept = [longer_beyond_chance(row - 30.0 * steps, [steps])[0] for row in noise]
    assert np.median(kept) == pytest.approx(-30.0, rel=0.1)


def test_neighbours_that_are_alike_count_as_few():
    """A slow drift would be a hundred independent steps that all say the same."""
    random = np.random.default_rng(4)
    steps = flags(("x" * 10 + "." * 10) * 4)
    walks = random.standard_normal((200, 80)).cumsum(axis=1)
    kept = [longer_beyond_chance(walk, [steps])[0] != 0.0 for walk in walks]
    assert np.mean(kept) < 0.2
