"""Rows whose records are gone: they stay, once, and count no record."""

import pyarrow as pa
import pytest

from meshscope.analyze.scale import kept_rows
from meshscope.analyze.scale.kept_rows import keep_rows, kept_names, with_kept
from meshscope.analyze.scale.segments import write_rows
from meshscope.analyze.scale.summary import SCHEMA
from meshscope.probe.schema.errors import RunDirectoryError


def rows(*cells, wall_s=1.0):
    """Return rows of some ranks and steps."""
    columns = {field.name: [0] * len(cells) for field in SCHEMA}
    columns |= {"rank": [rank for rank, _ in cells], "step": [step for _, step in cells]}
    columns |= {"wall_s": [wall_s] * len(cells), "span_rows": [7] * len(cells)}
    columns["tokens"] = [None] * len(cells)
    return pa.Table.from_pydict(columns, schema=SCHEMA)


@pytest.fixture
def run(tmp_path):
    """Return a run that keeps the rows of two ranks."""
    (tmp_path / "run" / "tables").mkdir(parents=True)
    (tmp_path / "made").mkdir()
    cells = [(rank, step) for rank in (0, 1) for step in (3, 4)]
    write_rows(rows(*cells), tmp_path / "made" / "00000-00001.abc.parquet")
    keep_rows(tmp_path / "run", tmp_path / "made", ["00000-00001.abc.parquet"])
    return tmp_path / "run"


def test_what_records_give_goes_before_what_was_kept(run):
    """Fails when a step is counted twice, or a row is replaced by an older one."""
    found = with_kept(run, (0, 1), rows((0, 4), (1, 4), wall_s=2.0)).to_pydict()
    cells = list(
        zip(*(found[name] for name in ("rank", "step", "wall_s", "span_rows")), strict=True)
    )
    assert cells == [(0, 3, 1.0, 0), (0, 4, 2.0, 7), (1, 3, 1.0, 0), (1, 4, 2.0, 7)]
    assert found["tokens"] == [None] * 4


def test_only_the_ranks_that_are_asked_for_come_back(run):
    """Fails when a file of some ranks holds the rows of others, which then count twice."""
    found = with_kept(run, (1,), rows((1, 9)))
    assert found.select(["rank", "step"]).to_pydict() == {"rank": [1, 1, 1], "step": [3, 4, 9]}
    assert with_kept(run, (7,), rows((7, 1))).num_rows == 1


def test_rows_of_256_ranks_are_one_file(tmp_path):
    """Fails when a store is asked for the rows of every 32 ranks."""
    (tmp_path / "run" / "tables").mkdir(parents=True)
    names = [f"{first:05d}-{first + 31:05d}.abc.parquet" for first in range(0, 320, 32)]
    for at, name in enumerate(names):
        write_rows(rows((32 * at, 3)), tmp_path / name)
    keep_rows(tmp_path / "run", tmp_path, names)
    (folder,) = (tmp_path / "run" / "tables").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == [
        "00000-00255.parquet",
        "00256-00319.parquet",
    ]
    assert with_kept(tmp_path / "run", (288,), rows((288, 9)))["step"].to_pylist() == [3, 9]


def test_a_later_removal_takes_the_place_of_the_earlier_one(run, tmp_path):
    """Fails when rows pile up with every removal, or the name of what is kept stays the same."""
    before = kept_names(run)
    keep_rows(run, tmp_path / "made", ["00000-00001.abc.parquet"])
    assert kept_names(run) != before
    assert len(list((run / "tables").iterdir())) == 1


def test_a_copy_that_fails_loses_nothing(run, tmp_path, monkeypatch):
    """Fails when a full disk at the second removal costs the rows of the first."""
    before = kept_names(run)

    def full(*_):
        raise OSError("no space")

    monkeypatch.setattr(kept_rows, "to_write", full)
    with pytest.raises(OSError, match="no space"):
        keep_rows(run, tmp_path / "made", ["00000-00001.abc.parquet"])
    assert kept_names(run) == before


def test_a_damaged_file_is_said(run):
    """Fails when rows that cannot be read are left out without a word, or end in a traceback."""
    (place,) = next((run / "tables").glob("kept_rows.*")).iterdir()
    place.write_bytes(b"PAR1")
    with pytest.raises(RunDirectoryError) as caught:
        with_kept(run, (0,), rows((0, 4)))
    assert caught.value.where == str(place)


def test_a_run_that_keeps_nothing_has_its_own_rows(tmp_path):
    """Fails when a run without removals needs a folder that it does not have."""
    own = rows((0, 1))
    assert with_kept(tmp_path, (0,), own) is own
    assert kept_names(tmp_path) == []
