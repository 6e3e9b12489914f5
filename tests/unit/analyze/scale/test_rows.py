"""Rows as arrays of ranks and steps: the short ways give what the general ones give, to the last bit."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meshscope.analyze.explain.slow_ranks.cube import coordinates_of, cube_of
from meshscope.analyze.explain.slow_ranks.grid import DenseGrid
from meshscope.analyze.scale.blocks import COUNTED_COLUMNS, blocks_of
from meshscope.analyze.scale.outline import Outline
from meshscope.analyze.scale.rows import Rows, joined
from meshscope.analyze.scale.segments import SegmentFacts
from meshscope.analyze.scale.store import Summaries
from meshscope.analyze.scale.summary import SCHEMA
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout


def table(cells, seed=0, **columns):
    """Return rows of (rank, step): times by chance, and counts; the columns that are given as they are."""
    rng = np.random.default_rng(seed)
    rank, step = (np.array(axis) for axis in zip(*cells, strict=True))
    columns = {"rank": rank, "step": step} | columns
    arrays = [
        pa.array(columns.get(one.name, rng.random(len(rank))), one.type)
        for one in SCHEMA
        if "_rows" not in one.name
    ]
    arrays += [
        pa.array(columns.get(one.name, np.full(len(rank), 7)), one.type)
        for one in SCHEMA
        if "_rows" in one.name
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def summaries(folder, *tables):
    """Return summaries of one file for each table."""
    facts = []
    for at, rows in enumerate(tables):
        pq.write_table(rows, folder / f"{at}.parquet")
        steps, ranks = (rows[name].to_numpy() for name in ("step", "rank"))
        held = tuple(np.unique(ranks).tolist())
        facts.append(
            SegmentFacts(
                f"{at}.parquet", held, rows.num_rows, int(steps.min()), int(steps.max()), {}, True
            )
        )
    return Summaries(
        run=folder, folder=folder, outline=Outline(None, None, None), segments=tuple(facts)
    )


def cells(ranks, steps):
    """Return (rank, step) of all ranks in all steps."""
    return [(rank, step) for rank in ranks for step in steps]


@pytest.mark.parametrize(
    ("held", "regular"),
    [
        (cells([3, 5], [1, 2, 4]), True),
        ([(3, 1), (3, 2), (5, 1)], False),
        ([(3, 1), (3, 2), (5, 1), (5, 3)], False),
        ([(3, 2), (3, 1), (5, 2), (5, 1)], False),
        ([(3, 1), (5, 1), (5, 2), (5, 3)], False),
    ],
)
def test_rows_are_regular_where_all_ranks_have_the_same_steps(held, regular):
    """Fails when the steps of a rank that lacks one are taken for those of another."""
    assert Rows(table(held)).is_regular == regular


@pytest.mark.parametrize(
    "steps",
    [
        range(7, 30),
        range(7, 450),
        [*range(40), *range(50, 333, 3)],
        [0, 1, *range(4, 333)],
        [0, 400, 401, 402],
    ],
)
def test_blocks_of_regular_rows_are_those_of_irregular_ones(tmp_path, steps):
    """Fails when a page shows other work of a rank because another rank lacks a step."""
    steps = list(steps)
    whole = table(cells(range(3), steps))
    beside = pa.concat_tables([whole, table([(3, step) for step in steps[:-1]], seed=1)])
    regular, mixed = (tmp_path / name for name in ("regular", "mixed"))
    regular.mkdir()
    mixed.mkdir()
    alone = blocks_of(summaries(regular, whole))
    found = blocks_of(summaries(mixed, beside)).blocks
    assert alone.blocks == found.slice(0, alone.blocks.num_rows)
    wall = whole["wall_s"].to_numpy().reshape(3, -1)
    assert alone.steps["step"].to_pylist() == steps
    assert (alone.steps["step_s"].to_numpy() == wall.max(axis=0)).all()
    assert alone.steps["records"].to_pylist() == [63] * len(steps)


def test_columns_without_values_are_not_read_and_count_as_0(tmp_path):
    """Fails when a kind of pass that only some files have gets lost, or moves to other ranks."""
    none = np.zeros(4)
    first = table(cells([0, 1], [1, 2]), own_forward_s=none, backward_s=none)
    second = table(cells([2, 3], [1, 2]), seed=1, backward_s=none)
    made = summaries(tmp_path, first, second)
    columns = ("rank", "step", "own_forward_s", "backward_s", "tokens")
    found = made.read(columns, zeros=False)
    assert found.column_names == ["rank", "step", "own_forward_s", "tokens"]
    assert found == made.read(columns).drop_columns(["backward_s"])
    rows = Rows(found)
    assert (rows.column("backward_s") == np.zeros(8)).all()
    both = rows.total(("own_forward_s", "backward_s"), np.float32)
    assert both.dtype == np.float32
    assert (both == found["own_forward_s"].to_numpy().astype(np.float32)).all()
    assert (rows.total(("backward_s",), np.float64) == np.zeros(8)).all()
    assert set(COUNTED_COLUMNS) <= set(SCHEMA.names)


def test_files_of_few_rows_are_looked_at_together():
    """Fails when rows get lost or change their order, or a column of one file is taken for that of another."""
    parts = [table(cells([rank], [1, 2]), seed=rank) for rank in range(5)]
    parts[3] = parts[3].drop_columns(["own_forward_s"])
    found = list(joined(parts, least_rows=4))
    assert [part.num_rows for part in found] == [4, 2, 2, 2]
    assert [part["rank"].num_chunks for part in found] == [1] * 4
    assert found[0] == pa.concat_tables(parts[:2])
    assert found[2] == parts[3]


@pytest.mark.parametrize("order", ["dp-pp-cp-tp", "pp-dp-cp-tp"])
def test_coordinates_of_many_ranks_are_those_of_each(order):
    """Fails when ranks of a mesh in another order are compared with those of other stages."""
    layout = ParallelLayout(tp=2, pp=3, dp=4, cp=2, order=order)
    ranks = np.array([0, 7, 11, 47])
    found = coordinates_of(layout, ranks)
    for at, rank in enumerate(ranks.tolist()):
        assert {axis: int(places[at]) for axis, places in found.items()} == layout.coordinates(rank)
    with pytest.raises(ConfigError):
        coordinates_of(layout, np.array([48]))


def test_a_dense_grid_has_each_duration_in_its_place():
    """Fails when a step without a pass of a kind counts as one that took no time."""
    layout = ParallelLayout(tp=1, pp=2, dp=2)
    cube, steps = cube_of((0, 1, 2, 3), layout), np.array([4, 5])
    forward = np.arange(8.0).reshape(2, 4)
    work = np.stack([forward, forward**2], axis=-1)
    grid = DenseGrid.of(cube, steps, {"forward": forward, "backward": 2 * forward}, work)
    assert grid.shape == (2, 2, 1)
    for position in range(2):
        by_rank = cube.by_rank(grid.step(position))[..., 0]
        known = np.where(forward[position] > 0, forward[position], np.nan)
        np.testing.assert_array_equal(by_rank, np.stack([known, 2 * known], axis=-1))
        reported = cube.by_rank(grid.step_features(position))[:, 1, 0]
        np.testing.assert_array_equal(
            reported, np.where(known[:, None] > 0, work[position], np.nan)
        )
