"""Launchers of one job meet in one run; what is there is never overwritten."""

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from meshscope.probe.launching import run_place
from meshscope.probe.launching.run_place import place_of, take_back, words_of_joining
from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.manifest import create_directory, rank_directory, read_json
from meshscope.probe.schema.tables import FORMAT_VERSION


def test_a_second_launcher_joins(tmp_path):
    """Fails when the launcher of a second host is refused, or writes over the first one's manifest."""
    first = place_of(tmp_path, "job", ["torchrun", "--node_rank", "0"])
    create_directory(rank_directory(first.path, 0))
    second = place_of(tmp_path, "job", ["torchrun", "--node_rank", "1"])
    assert (first.is_new, second.is_new) == (True, False)
    assert first.path == second.path
    assert second.before == {rank_directory(first.path, 0)}
    assert read_json(first.path / "manifest.json")["command"][-1] == "0"


def test_launchers_that_come_at_once_agree(tmp_path):
    """Fails when one of several launchers that start together does not get the run of the others."""
    launchers = 8
    with ThreadPoolExecutor(launchers) as pool:
        for job in range(30):
            together = threading.Barrier(launchers)

            def launch(_, job=job, together=together):
                together.wait()
                return place_of(tmp_path / "runs", f"job-{job}", ["train"])

            places = list(pool.map(launch, range(launchers)))
            assert {place.path for place in places} == {tmp_path / "runs" / f"job-{job}"}
            assert sum(place.is_new for place in places) == 1
            assert read_json(places[0].path / "manifest.json")["command"] == ["train"]


def test_a_run_whose_maker_died_gets_its_manifest(tmp_path):
    """Fails when a launcher that was killed between two calls leaves a run that nobody can read."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / ".manifest.json.ab12").write_text("{")
    assert not place_of(tmp_path, "job", ["train"]).is_new
    assert read_json(tmp_path / "job" / "manifest.json")["run_id"] == "job"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("train.py", "", r"contains 'train.py' and is not a run\. Choose another --run-id"),
        (
            "manifest.json",
            f'{{"format_version": {FORMAT_VERSION}, "ingested": {{}}}}',
            "made from other traces",
        ),
        ("manifest.json", '{"format_version": 999}', "format version 999"),
        ("manifest.json", '{"format_ver', "not valid JSON"),
    ],
)
def test_what_is_none_of_ours_is_left_alone(tmp_path, name, text, why):
    """Fails when ranks would record into a folder of something else."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / name).write_text(text)
    with pytest.raises(MeshscopeError, match=why):
        place_of(tmp_path, "job", ["train"])
    assert [path.name for path in (tmp_path / "job").iterdir()] == [name]
    assert (tmp_path / "job" / name).read_text() == text


def test_a_file_is_no_run(tmp_path):
    """Fails when a file of the name of the run shows as an error of the system."""
    (tmp_path / "job").write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        place_of(tmp_path, "job", ["train"])


def test_a_name_of_our_own_is_never_joined(tmp_path, monkeypatch):
    """Fails when jobs in containers with equal process ids, started in one second, become one run."""
    monkeypatch.setattr(run_place, "unix_ns", lambda: 1_700_000_000_000_000_000)
    places = [place_of(tmp_path, None, ["train"]) for _ in range(3)]
    assert len({place.path for place in places}) == 3
    assert all(place.is_new for place in places)


def test_what_others_use_is_not_taken_back(tmp_path):
    """Fails when a misspelt command on one host deletes what the other hosts record."""
    alone = place_of(tmp_path, "alone", ["train"])
    take_back(alone)
    assert not alone.path.exists()
    made = place_of(tmp_path, "job", ["train"])
    joined = place_of(tmp_path, "job", ["train"])
    take_back(joined)
    assert (made.path / "manifest.json").exists()
    create_directory(rank_directory(made.path, 0))
    take_back(made)
    assert rank_directory(made.path, 0).exists()
    assert (made.path / "manifest.json").exists()


def test_joining_what_has_recorded_is_said(tmp_path):
    """Fails when two jobs become attempts of one run without a word."""
    new = place_of(tmp_path, "job", ["train"])
    assert words_of_joining(new) == ""
    assert words_of_joining(place_of(tmp_path, "job", ["train"])) == "", "hosts that come at once"
    create_directory(rank_directory(new.path, 0))
    said = words_of_joining(place_of(tmp_path, "job", ["train"]))
    assert "joins the run of 20" in said
    assert "another --run-id keeps jobs apart" in said
    manifest = new.path / "manifest.json"
    manifest.write_text(json.dumps(read_json(manifest) | {"created_unix_ns": None}))
    assert "joins the run in" in words_of_joining(place_of(tmp_path, "job", ["train"]))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_run_of_another_user(tmp_path):
    """Fails when a run that may not be written is joined, and its ranks then record nothing."""
    made = place_of(tmp_path, "job", ["train"])
    made.path.chmod(0o500)
    with pytest.raises(ConfigError, match="may not be written"):
        place_of(tmp_path, "job", ["train"])
