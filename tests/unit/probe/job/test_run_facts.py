"""What is learned of a job piece by piece, as its manifest holds it."""

import sys

import pytest

from meshscope.probe.job.identity import Identity
from meshscope.probe.job.run_facts import RunFacts, command_of_job
from meshscope.probe.recording.rank_manifest import RankManifest
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import MANIFEST_NAME, rank_directory, read_json, write_json
from meshscope.probe.schema.rundir import update_run_manifest

MESH = ParallelLayout(pp=2, dp=2)
_ENDED = 1 << 23
"""The number of no process."""


@pytest.fixture
def facts(tmp_path):
    """Return the facts of rank 0 of four, with a run directory."""
    found = RunFacts()
    found.open(tmp_path, Identity(rank=0, world_size=4))
    return found


def layout_in(tmp_path, facts=None):
    """Return the layout that the manifest holds, once what is due is written."""
    if facts is not None:
        facts.write_due()
    return ParallelLayout.from_json(read_json(tmp_path / MANIFEST_NAME)["layout"])


def test_chunks_join_the_mesh_in_either_order(tmp_path, facts):
    """Fails if an interleaved schedule is held against the bubble of one chunk a rank."""
    facts.learn({"layout": ParallelLayout(dp=4).to_json()})
    facts.learn_chunks(2)
    assert layout_in(tmp_path, facts) == ParallelLayout(dp=4, vpp=2)
    facts.learn({"layout": MESH.to_json()})
    assert layout_in(tmp_path, facts) == ParallelLayout(pp=2, dp=2, vpp=2)


def test_chunks_without_a_mesh_make_none(tmp_path, facts):
    """Fails if a job whose mesh is unknown gets one of a single rank."""
    facts.learn_chunks(2)
    facts.write_due()
    assert not read_json(tmp_path / MANIFEST_NAME).get("layout")


def test_what_was_learned_first_stays_however_late_it_is_written(tmp_path, facts):
    """Fails if which schedule a run is told to have depends on when the writer comes by."""
    facts.learn({"schedule": "gpipe"})
    facts.learn({"schedule": "1f1b", "microbatches": 4})
    facts.write_due()
    facts.learn({"schedule": "zb-v"})
    facts.write_due()
    run = read_json(tmp_path / MANIFEST_NAME)
    assert (run["schedule"], run["microbatches"]) == ("gpipe", 4)


def test_a_stated_layout_stays(tmp_path, facts):
    """Fails if what the user states is overruled by what is learned."""
    facts.add({"layout": MESH})
    facts.learn({"layout": ParallelLayout(tp=4).to_json()})
    facts.learn_chunks(2)
    assert layout_in(tmp_path, facts) == MESH


@pytest.fixture
def attempt(tmp_path):
    """Return a function that opens the facts of an attempt, and records their rank's part."""
    opened = []

    def start(world_size, *, pid=None):
        found, part = RunFacts(), len(opened) + 1
        found.open(tmp_path, Identity(0, world_size))
        directory = rank_directory(tmp_path, 0, part)
        directory.mkdir()
        manifest = RankManifest(directory, 0)
        found.tell(manifest.annotate)
        opened.append(manifest)

        def end():
            found.write_due()
            manifest.write()
            path = directory / MANIFEST_NAME
            if pid is not None:
                write_json(path, {**read_json(path), "pid": pid})

        return found, end

    return start


def test_facts_of_a_second_attempt_replace_those_of_the_first(tmp_path, attempt, monkeypatch):
    """Fails when a job that was started anew keeps world size, model or command of its first start."""
    first, end = attempt(4, pid=_ENDED)
    first.add({"model": {"seq_len": 9}, "microbatches": 8})
    first.learn({"layout": MESH.to_json(), "software": {"torch": "2.0"}})
    end()
    monkeypatch.setenv("MESHSCOPE_COMMAND", '["again"]')
    second, end = attempt(2, pid=_ENDED)
    second.learn({"layout": ParallelLayout(dp=2).to_json(), "software": {"torch": "2.1"}})
    end()
    run = read_json(tmp_path / MANIFEST_NAME)
    assert (run["world_size"], run["command"]) == (2, ["again"])
    assert (run["model"], run["microbatches"]) == ({}, None)
    assert layout_in(tmp_path) == ParallelLayout(dp=2)
    assert run["software"] == {"torch": "2.1"}
    kept = read_json(rank_directory(tmp_path, 0) / MANIFEST_NAME)["annotations"]["job"]
    assert (kept["world_size"], kept["microbatches"]) == (4, 8)
    assert ParallelLayout.from_json(kept["layout"]) == MESH


def test_a_process_that_is_attached_again_keeps_what_it_said(tmp_path, attempt):
    """Fails when a detached probe forgets the model, which nobody states twice."""
    first, end = attempt(4)
    first.add({"microbatches": 8, "layout": MESH})
    end()
    second, end = attempt(4)
    second.learn({"layout": ParallelLayout(dp=4).to_json()})
    end()
    assert read_json(tmp_path / MANIFEST_NAME)["microbatches"] == 8
    assert layout_in(tmp_path) == MESH
    job = read_json(rank_directory(tmp_path, 0, 2) / MANIFEST_NAME)["annotations"]["job"]
    assert job["microbatches"] == 8
    assert ParallelLayout.from_json(job["layout"]) == MESH


def test_facts_that_others_wrote_stay(tmp_path, attempt):
    """Fails when a peak that the user has written into the manifest is lost at a restart."""
    first, end = attempt(4, pid=_ENDED)
    first.add({"microbatches": 8})
    end()
    update_run_manifest(tmp_path, {"peak_flops": 1e15})
    attempt(4, pid=2)
    assert read_json(tmp_path / MANIFEST_NAME)["peak_flops"] == 1e15


@pytest.mark.parametrize("reported", [None, "", "{", '"a"', "[1]"])
def test_a_command_that_nobody_reported_is_that_of_the_process(reported):
    """Fails when a variable of somebody else ends the start of a capture."""
    environment = {} if reported is None else {"MESHSCOPE_COMMAND": reported}
    assert command_of_job(environment) == sys.argv


@pytest.mark.parametrize("tells_first", [True, False])
def test_each_rank_says_what_it_observed(tmp_path, facts, tells_first):
    """Fails when what only one rank runs, such as an evaluation, is known of rank 0 alone."""
    other, noted = RunFacts(), {}
    other.open(tmp_path, Identity(rank=1, world_size=4))
    if tells_first:
        other.tell(noted.__setitem__)
    other.learn({"layout": MESH.to_json(), "observed": {"ran_products": 1.0}})
    other.learn({"observed": {"ran_products": 2.0}})
    other.learn({"schedule": "gpipe"})
    if not tells_first:
        other.tell(noted.__setitem__)
    assert noted == {"observed": {"ran_products": 2.0}}
    of_first = {}
    facts.tell(of_first.__setitem__)
    facts.learn({"observed": {"ran_products": 3.0}})
    facts.write_due()
    assert of_first == {"job": {"observed": {"ran_products": 3.0}, **of_first["job"]}}
