"""Knowing a source again: by its content, and by what the file system says of it."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshscope.analyze.read.source_files import (
    SourceIndex,
    content_key,
    declared_columns,
    jobs_of,
    size_of,
    source_files,
)
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.tables import TABLES

AGO_S = 3600


@pytest.fixture
def source(tmp_path):
    """Return a folder of two files."""
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("rank0.json", "rank1.json"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def index(tmp_path, source, monkeypatch):
    """Return an index that knows the source, written long after the files."""
    files = source_files([source])
    found = SourceIndex(tmp_path / "runs")
    found.remember(files, "k" * 64, seen=found.state(files))
    (entry,) = (tmp_path / "runs").rglob("*.json")
    later = time.time() + AGO_S
    os.utime(entry, (later, later))
    return found


def test_the_key_follows_names_and_contents(tmp_path: Path):
    """If this fails, a trace that was written anew is answered from the old one."""
    (tmp_path / "a").write_bytes(b"one")
    key, size = content_key([tmp_path / "a"])
    (tmp_path / "b").write_bytes(b"one")
    assert size == 3
    assert content_key([tmp_path / "b"])[0] != key
    (tmp_path / "a").write_bytes(b"two")
    assert content_key([tmp_path / "a"])[0] != key


def test_the_key_does_not_depend_on_the_place(tmp_path, source):
    """A folder that was moved or copied would be parsed again."""
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in source.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert content_key(source_files([copy]))[0] == content_key(source_files([source]))[0]


def test_untouched_files_are_known_without_reading_them(source, index):
    """Opening a terabyte again would take as long as reading it."""
    assert index.find(source_files([source])) == "k" * 64


@pytest.mark.parametrize("change", ["content", "touched", "added", "removed", "replaced"])
def test_any_change_is_noticed(source, index, change):
    """Old tables would be shown for new files."""
    file = source / "rank0.json"
    if change == "content":
        file.write_text("rank9.json")
    elif change == "touched":
        os.utime(file, (1, 1))
    elif change == "added":
        (source / "rank2.json").write_text("more")
    elif change == "removed":
        file.unlink()
    else:
        before = file.stat()
        (source / "new").write_text("rank9.json")
        os.utime(source / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
        (source / "new").replace(file)
    assert index.find(source_files([source])) is None


def test_files_that_are_too_young_are_hashed_again(tmp_path, source):
    """A file that changes twice within one tick of its clock would be taken for the first."""
    files = source_files([source])
    index = SourceIndex(tmp_path / "runs")
    index.remember(files, "k" * 64, seen=index.state(files))
    assert index.find(files) is None


def test_files_that_changed_while_they_were_read_are_not_noted(tmp_path, source):
    """The key of half a file would stand for the whole one."""
    files = source_files([source])
    index = SourceIndex(tmp_path / "runs")
    seen = index.state(files)
    (source / "rank0.json").write_text("longer than it was")
    index.remember(files, "k" * 64, seen=seen)
    assert not list((tmp_path / "runs").rglob("*.json"))


def test_files_given_together_are_one_job(source):
    """Ranks that a shell expands from a pattern would become a run each."""
    one, two = sorted(source.iterdir())
    assert jobs_of([one, two]) == [[one, two]]
    assert jobs_of([source, one, two]) == [[one, two], [source]]
    assert jobs_of([source, source / "rank*.json"]) == [[source], [source / "rank*.json"]]


def test_sizes_and_files_of_what_is_not_there(tmp_path):
    """A wrong path would make an empty run."""
    assert size_of(tmp_path / "none") == 0
    with pytest.raises(MeshscopeError):
        source_files([tmp_path / "none*.json"])


def test_tables_with_other_columns_have_another_key():
    """Fails when what an earlier version kept is opened without a column that is needed now: the command ends there."""
    name, table = next(iter(TABLES.items()))
    first, *others = table.columns
    changes = {
        "fewer": others,
        "renamed": [replace(first, name="other"), *others],
        "of another type": [replace(first, dtype="float64"), *others],
        "may be unknown": [replace(first, nullable=not first.nullable), *others],
    }
    numbers = {
        declared_columns({**TABLES, name: replace(table, columns=tuple(columns))})
        for columns in changes.values()
    }
    assert len(numbers | {declared_columns(TABLES)}) == len(changes) + 1
    reworded = replace(table, columns=(replace(first, meaning="the same, in other words"), *others))
    assert declared_columns({**TABLES, name: reworded}) == declared_columns(TABLES)
