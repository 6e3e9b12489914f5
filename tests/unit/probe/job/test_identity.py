"""All ranks of a job name the same run directory without talking to each other."""

from pathlib import Path

import pytest

from meshscope.probe.job.identity import (
    DEFAULT_ROOT,
    OWNER_VARIABLE,
    Identity,
    default_run_path,
    identify,
    is_launcher,
    launch_name,
    local_rank_of,
    mark_owner,
    owner_of,
    unmark_owner,
)
from meshscope.probe.schema.errors import ConfigError


def test_the_launcher_says_who_we_are():
    """Fails when a rank takes itself for another one."""
    assert identify({"RANK": "3", "WORLD_SIZE": "8"}) == Identity(3, 8)


@pytest.mark.parametrize("variables", [{}, {"RANK": "3"}, {"RANK": "x", "WORLD_SIZE": "8"}])
def test_an_unknown_rank_is_not_guessed(variables):
    """Fails when a process without a full identity is taken for some rank."""
    assert identify(variables) is None


def test_the_given_directory_wins():
    """Fails when ranks ignore the directory that their launcher made."""
    given = {"MESHSCOPE_RUN_DIR": "/runs/a", "TORCHELASTIC_RUN_ID": "job"}
    assert default_run_path(given, 8) == Path("/runs/a")


def test_ranks_of_a_job_agree():
    """Fails when ranks of one job would write to different runs."""
    found = default_run_path({"TORCHELASTIC_RUN_ID": "a/b c"}, 8)
    assert found == Path.cwd() / DEFAULT_ROOT / "run-a-b-c"
    local = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "8"}
    assert default_run_path(local, 8) == default_run_path(local, 8)


def test_a_restarted_job_finds_its_run():
    """Fails when the ranks of a second attempt record where nobody looks."""
    again = {"MESHSCOPE_RUN_DIR": "/runs/a", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert default_run_path(again, 8) == Path("/runs/a")
    assert launch_name(again) != launch_name({**again, "TORCHELASTIC_RESTART_COUNT": "3"})


def test_the_mark_of_the_owner(monkeypatch):
    """Fails when a rank's child takes itself for the rank, or the mark outlives the recording."""
    environment = {"RANK": "0"}
    mark_owner(environment)
    assert owner_of(environment) is None
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert owner_of(environment) == int(environment[OWNER_VARIABLE].split()[0])
    unmark_owner(environment)
    assert OWNER_VARIABLE in environment, "only the process that set it may take it away"
    monkeypatch.undo()
    mark_owner({})
    unmark_owner(environment)
    assert environment == {"RANK": "0"}


@pytest.mark.parametrize(
    ("own", "owner", "is_owned"),
    [
        ({"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "0"}, False),
        ({"RANK": "1"}, {"RANK": "0"}, False),
        ({"RANK": "0"}, {"RANK": "0"}, True),
        ({"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}, True),
    ],
)
def test_who_is_started_by_a_rank_and_who_by_a_launcher(monkeypatch, own, owner, is_owned):
    """Fails when a launcher with the rank of its node keeps its ranks from being recorded."""
    owner = dict(owner)
    mark_owner(owner)
    monkeypatch.setattr("os.getpid", lambda: 1)
    inherited = {**owner, **own}
    assert (owner_of(inherited) is not None) is is_owned
    mark_owner(inherited)
    assert (inherited[OWNER_VARIABLE].split()[0] == "1") is not is_owned


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        ("python /usr/bin/torchrun --nproc_per_node 2 train.py", True),
        ("python -u -X dev -m torch.distributed.run train.py", True),
        ("python -m accelerate.commands.launch train.py", True),
        ("python train.py torchrun", False),
        ("python -m trainer --launcher torchrun", False),
        ("python -c torchrun", True),  # What nobody does.
        ("python", False),
    ],
)
def test_launchers_are_known(words, is_one):
    """Fails when a launcher is recorded, or a rank is not."""
    assert is_launcher(words.split()) is is_one


def test_a_relative_place_is_that_of_the_start(tmp_path, monkeypatch):
    """Fails when training code that changes its directory moves the run."""
    monkeypatch.chdir(tmp_path)
    given = {"MESHSCOPE_RUN_DIR": "runs/a"}
    assert default_run_path(given, 8) == tmp_path / "runs/a"
    assert default_run_path(given, 8, Path("/base")) == Path("/base/runs/a")


def test_several_hosts_need_a_common_name():
    """Fails when hosts silently record one job as several runs."""
    with pytest.raises(ConfigError, match=r"MESHSCOPE_RUN_DIR: .*several hosts.*meshscope run"):
        default_run_path({"LOCAL_WORLD_SIZE": "4"}, 8)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "5", "LOCAL_RANK": "1"}, 1),
        ({"LOCAL_RANK": "1"}, 1),
        ({"RANK": "0", "LOCAL_RANK": "0"}, None),
        ({"SLURM_PROCID": "5", "SLURM_LOCALID": "3"}, 3),
        ({"SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, None),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"PMI_RANK": "5", "MPI_LOCALRANKID": "4"}, 4),
        ({"LOCAL_RANK": "one", "PMI_RANK": "5", "MPI_LOCALRANKID": "4"}, 4),
        ({}, None),
    ],
)
def test_the_place_among_the_ranks_of_a_host(variables, expected):
    """Fails when rank 5 is given the place of the task that has spawned it."""
    assert local_rank_of(5, variables) == expected
