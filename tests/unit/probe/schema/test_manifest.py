"""Names and JSON files of a run directory."""

import json
import os

import pytest

from meshscope.probe.schema.errors import ConfigError, FormatVersionError, RunDirectoryError
from meshscope.probe.schema.manifest import (
    check_format_version,
    check_run_id,
    rank_directories,
    rank_directory,
    read_json,
    write_json,
)
from meshscope.probe.schema.tables import FORMAT_VERSION


@pytest.mark.parametrize("run_id", ["a", "2026-01-31_llama.70b", "A" * 128])
def test_good_run_ids(run_id):
    """Fails when a usual name of a run is refused."""
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    "run_id", ["", ".", "..", ".hidden", "a/b", "../x", "a b", "ä", "A" * 129, "a\n"]
)
def test_run_ids_cannot_leave_the_directory(run_id):
    """Fails when the name of a run can point outside the directory of runs."""
    with pytest.raises(ConfigError, match="cannot name a run"):
        check_run_id(run_id)


def test_rank_directories_are_found_in_rank_order(tmp_path):
    """Fails when ranks are read in text order, or files pass for ranks."""
    for rank in (10, 2, 123456):
        rank_directory(tmp_path, rank).mkdir()
    (tmp_path / "rank00001").touch()
    (tmp_path / "rank7").mkdir()
    (tmp_path / "host-a").mkdir()
    assert list(rank_directories(tmp_path)) == [2, 10, 123456]


@pytest.mark.parametrize("version", [0, 1, 2, None, "3", True, 3.5, [3]])
def test_other_versions_are_refused_with_a_remedy(version):
    """Fails when a manifest without the right version is read as if it had it."""
    with pytest.raises(FormatVersionError) as caught:
        check_format_version(version, "run/manifest.json")
    assert repr(version) in str(caught.value)
    assert f"reads version {FORMAT_VERSION}" in str(caught.value)
    assert caught.value.remedy


def test_json_is_replaced_whole(tmp_path):
    """Fails when a reader can see half a manifest, or a failed write destroys the old one."""
    path = tmp_path / "manifest.json"
    write_json(path, {"a": 1})
    with path.open() as old:
        write_json(path, {"a": 2})
        assert json.load(old) == {"a": 1}
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert read_json(path) == {"a": 2}
    assert os.listdir(tmp_path) == ["manifest.json"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": ', "is not valid JSON"),
        (b"[1]", "is not a JSON object"),
        (b"\xff\xfe\x00", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (None, "cannot be read: No such file"),
    ],
    ids=["torn", "list", "binary", "deep", "absent"],
)
def test_bad_json_is_one_clear_error(tmp_path, content, message):
    """Fails when a torn manifest ends in a traceback of the JSON parser."""
    path = tmp_path / "manifest.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunDirectoryError, match=message):
        read_json(path)
