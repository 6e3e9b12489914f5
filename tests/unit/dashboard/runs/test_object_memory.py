"""How much memory is held: each buffer once, and what a run takes is true within a fifth."""

import gc
import tracemalloc
from dataclasses import dataclass

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.unit.dashboard.conftest import write_synthetic

from meshscope.dashboard.runs.object_memory import held_bytes, held_each
from meshscope.dashboard.runs.store import RunStore

MIB = 1 << 20


def near(mib):
    """Return a number of MiB, with the odd kB of what holds it."""
    return pytest.approx(mib * MIB, rel=0.01)


def test_buffers_are_counted_once():
    """Fails when a run with views of its tables seems several times as large as it is."""
    whole = np.zeros(MIB)
    table = pa.table({"one": whole})
    assert held_bytes(whole) == near(8)
    assert held_bytes([whole, whole[10:], whole.reshape(2, -1)]) == near(8)
    assert held_bytes(table, table.slice(5), table["one"]) == near(8)
    assert held_each([whole, [whole, np.ones(MIB)]]) == [near(8), near(8)]


def test_frames_are_counted_with_their_objects():
    """Fails when columns of texts, categories or nullable numbers count as nothing."""
    numbers = pd.DataFrame({"a": np.arange(MIB), "b": np.ones(MIB)})
    assert held_bytes(numbers, numbers["a"], numbers) == near(16)
    assert held_bytes(numbers.assign(c=1.0)) == near(24)
    nullable = pd.DataFrame({"a": pd.array(np.arange(MIB), dtype="Int64")})
    assert held_bytes(nullable) == near(9)
    kinds = pd.DataFrame({"a": pd.Categorical.from_codes(np.zeros(MIB, np.int8), ["x"])})
    assert held_bytes(kinds) == near(1)
    several = {name: pd.Categorical.from_codes(np.zeros(MIB, np.int8), ["x"]) for name in "abcdef"}
    assert held_bytes(pd.DataFrame(several)) == near(6)
    texts = pd.DataFrame({"a": pd.Series([f"{at:07d}" for at in range(MIB)], dtype=object)})
    assert held_bytes(texts) == pytest.approx(MIB * (8 + 56), rel=0.05)
    same = pd.DataFrame({"a": pd.Series(["same"] * MIB, dtype=object)})
    assert held_bytes(same) == pytest.approx(8 * MIB, rel=0.02)


def test_records_are_counted_with_their_members():
    """Fails when what lies in a record counts as nothing, so that runs in memory seem small."""

    class Fast(msgspec.Struct):
        column: np.ndarray

    @dataclass(slots=True)
    class Plain:
        column: np.ndarray

    assert held_bytes([Fast(np.zeros(MIB)), Plain(np.zeros(MIB))]) == near(16)


def test_answers_are_counted_by_a_sample():
    """Fails when a page of a million numbers costs seconds to count, or counts as nothing."""
    answer = {"rows": [{"at": at, "value": at * 0.5} for at in range(100_000)]}
    assert held_bytes(answer) == pytest.approx(100_000 * (184 + 8), rel=0.2)


def test_a_circle_ends():
    """Fails when an object that refers to itself is counted for ever."""
    one = [np.zeros(MIB)]
    one.append(one)
    assert held_bytes(one) == near(8)


@pytest.mark.sampled(keep=())
def test_what_a_run_takes_is_true_within_a_fifth(tmp_path):
    """Fails when the budget of a server means another amount of memory than it has."""
    for name in ("first", "second"):
        write_synthetic(tmp_path / name, "slow_rank:rank=3,factor=1.5", steps=100)

    def opened(name):
        store = RunStore(tmp_path / name)
        run = store.get(next((tmp_path / name).iterdir()).name)
        run.rows(0)
        gc.collect()
        return store

    first = opened("first")  # Imports and caches of the program.
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes()
    second = opened("second")
    grown = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    tracemalloc.stop()
    assert second.held_bytes() == pytest.approx(grown, rel=0.2)
    assert first.held_bytes() == pytest.approx(second.held_bytes(), rel=0.2)
