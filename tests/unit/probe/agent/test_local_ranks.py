"""Which ranks are here and alive, and the run as this node sees it."""

import json
import subprocess
import sys

import pytest

from meshscope.probe.agent import local_ranks
from meshscope.probe.agent.local_ranks import LocalRanks
from meshscope.probe.clock import now_ns
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.manifest import rank_directory
from meshscope.probe.schema.rundir import update_run_manifest

ASLEEP = StorageSettings(wake_s=3600.0, slot_count=1024, free_floor_frac=0.0)
MINUTE_NS = 60_000_000_000


@pytest.fixture
def recorders(run_path):
    """Return the recorders of three ranks that have each made five steps of 10 ms."""
    made = [Recorder(run_path, rank, settings=ASLEEP) for rank in range(3)]
    for recorder in made:
        for step in range(5):
            recorder.record_step(step, step * 10_000_000, 10_000_000)
    yield made
    for recorder in made:
        recorder.close()


def looked(run_path, flops=lambda _: None):
    """Return the ranks after one look."""
    ranks = LocalRanks(run_path, flops)
    ranks.look(now_ns())
    ranks.follow(now_ns())
    return ranks


def test_steps_are_read_from_the_rings(run_path, recorders):
    """Fails when the live figures wait for the ranks to write their segments."""
    ranks = looked(run_path)
    live = ranks.figures()
    assert {rank: f.step_time_s for rank, f in live.ranks.items()} == dict.fromkeys(range(3), 0.01)
    assert (live.mfu, live.scores) == (None, {})
    ranks.close()


def test_mfu_where_flops_and_peak_are_known(run_path, recorders):
    """Fails when MFU counts another number of devices, or is made up."""
    update_run_manifest(run_path, {"world_size": 2})
    ranks = looked(run_path, lambda run: (1e12 * run["world_size"], 4e14))
    assert ranks.figures().mfu == pytest.approx(2e12 / (2 * 4e14 * 0.01))
    ranks.close()


def test_ranks_of_other_machines_are_not_ours(run_path, recorders):
    """Fails when an agent waits for, or shows, the ranks of another node."""
    path = rank_directory(run_path, 2) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    ranks = looked(run_path)
    assert (ranks.count(), ranks.alive(now_ns())) == (2, 2)
    ranks.close()


def test_a_closed_rank_has_ended(run_path, recorders):
    """Fails when the agent outlives a job that ended in order."""
    ranks = looked(run_path)
    assert ranks.alive(now_ns()) == 3
    for recorder in recorders:
        recorder.close()
    ranks.look(now_ns())
    assert ranks.alive(now_ns()) == 0
    ranks.close()


def test_a_killed_rank_has_ended(run_path):
    """Fails when the agent waits for a rank that was killed before it closed its capture."""
    code = (
        "import sys, time; from pathlib import Path; from meshscope.probe.recording.recorder import Recorder\n"
        "Recorder(Path(sys.argv[1]), 0); print('ready', flush=True); time.sleep(60)"
    )
    rank = subprocess.Popen([sys.executable, "-c", code, str(run_path)], stdout=subprocess.PIPE)
    rank.stdout.readline()
    ranks = looked(run_path)
    assert ranks.alive(now_ns()) == 1
    rank.kill()
    rank.wait()
    rank.stdout.close()
    assert ranks.alive(now_ns()) == 0
    ranks.close()


def test_a_rank_with_process_ids_of_its_own_is_judged_by_its_records(run_path, recorders):
    """Fails when a rank in another container is taken for dead while it records."""
    path = rank_directory(run_path, 0) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 2**22 + 5}))
    ranks = looked(run_path)
    assert ranks.alive(now_ns()) == 3
    assert ranks.alive(now_ns() + 2 * MINUTE_NS) == 2
    ranks.close()


def test_a_rank_that_comes_back_on_this_node_is_ours(run_path, recorders):
    """Fails when a rank that was on another machine before a restart is never shown again."""
    path = rank_directory(run_path, 2) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    ranks = looked(run_path)
    assert ranks.count() == 2
    again = Recorder(run_path, 2, settings=ASLEEP)
    ranks.look(now_ns())
    assert ranks.count() == 3
    assert set(ranks.parts()[2]) == {rank_directory(run_path, 2), rank_directory(run_path, 2, 2)}
    again.close()
    ranks.close()


def test_only_ranks_of_this_node_are_looked_at_again(run_path, recorders, monkeypatch):
    """Fails when the agent of every node reads the manifests of all ranks at every look."""
    path = rank_directory(run_path, 2) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    ranks = looked(run_path)
    read = []
    monkeypatch.setattr(local_ranks, "read_json", lambda path: read.append(path) or {})
    for rank in range(3):
        (rank_directory(run_path, rank) / "manifest.json").touch()
    ranks.look(now_ns())
    assert [path.parent.name for path in read] == ["rank00000", "rank00001"]
    ranks.close()
