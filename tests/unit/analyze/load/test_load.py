"""Opening a path: what is a run, what is not, and what of its manifest is believed."""

import json

import pytest
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.probe.schema.errors import (
    ConfigError,
    FormatVersionError,
    MeshscopeError,
    RunDirectoryError,
    TraceFormatError,
)
from meshscope.probe.schema.manifest import rank_directory, write_json
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.tables import FORMAT_VERSION


@pytest.mark.parametrize("form", [str, lambda path: path])
def test_nothing_there(tmp_path, form):
    """A typing error in a path would be a traceback."""
    with pytest.raises(RunDirectoryError, match="no such file or directory"):
        load_trace(form(tmp_path / "absent"))


def test_a_file_that_is_no_trace(tmp_path):
    """Any file would be taken for a trace, or crash the reader."""
    path = tmp_path / "notes.txt"
    path.write_text("hello", encoding="utf-8")
    with pytest.raises(TraceFormatError) as caught:
        load_trace(path)
    assert caught.value.remedy


def test_a_newer_format_is_refused(tmp_path):
    """Columns of another meaning would be read as ours."""
    (tmp_path / "manifest.json").write_text(
        json.dumps({"format_version": FORMAT_VERSION + 1}), encoding="utf-8"
    )
    with pytest.raises(FormatVersionError):
        load_trace(tmp_path)


def test_a_run_without_ranks_loads_empty_and_says_so(tmp_path):
    """A run that died at once could not be looked at."""
    layout = {"tp": 2, "pp": 2, "dp": 1}
    path = create_run(tmp_path, "run", {"world_size": 4, "layout": layout})
    trace = load_trace(path)
    assert trace.ranks == ()
    assert trace.layout is not None
    assert (trace.layout.tp, trace.layout.pp) == (2, 2)
    assert trace.frame("collective").empty
    assert any("4 of 4 ranks missing" in limit for limit in texts(trace.limits))


@pytest.mark.parametrize("layout", [{"tp": 0}, {"tp": "two"}, {"order": "tp-pp"}])
def test_a_layout_that_cannot_be_is_not_used(tmp_path, layout):
    """A wrong manifest would stop the analysis, or place ranks where they are not."""
    path = create_run(tmp_path, "run", {"world_size": 4, "layout": layout})
    try:
        trace = load_trace(path)
    except MeshscopeError as error:
        pytest.fail(f"refused: {error}")
    assert trace.layout is None
    assert any("layout" in limit for limit in texts(trace.limits))


def test_ranks_share_a_clock_by_their_boot(tmp_path):
    """Containers of one machine would get offsets to each other, or two machines one clock."""
    path = create_run(tmp_path, "run", {"world_size": 6})
    stated = [("a", "b1"), ("pod", "b1"), ("a", "b2"), ("c", None), (None, "b3"), (None, None)]
    for rank, (host, boot) in enumerate(stated):
        directory = rank_directory(path, rank)
        directory.mkdir()
        known = {"format_version": FORMAT_VERSION, "rank": rank, "host": host, "boot_id": boot}
        write_json(directory / "manifest.json", known)
    trace = load_trace(path)
    assert trace.clocks == {0: "a", 1: "a", 2: "a (boot b2)", 3: "c", 4: "b3"}
    assert trace.clock_of(5) == "rank 5"


@pytest.mark.parametrize("given", ["0", "-1", "12e6", "many", "٣"])
def test_a_room_that_is_no_number_is_refused(tmp_path, monkeypatch, given):
    """A slip in the variable would end in a traceback, or read nothing of a run."""
    path = create_run(tmp_path, "run", {"world_size": 1})
    monkeypatch.setenv("MESHSCOPE_MOST_ROWS", given)
    with pytest.raises(ConfigError, match="not a number of rows"):
        load_trace(path)
    monkeypatch.setenv("MESHSCOPE_MOST_ROWS", " 5000 ")
    assert load_trace(path).is_whole
