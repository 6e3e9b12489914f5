"""All ranks of a job name the same run directory without talking to each other."""

from pathlib import Path

import pytest

from meshscope.probe.identity import (
    DEFAULT_ROOT,
    OWNER_VARIABLE,
    Identity,
    default_run_path,
    identify,
    launch_name,
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
    assert default_run_path({"TORCHELASTIC_RUN_ID": "a/b c"}, 8) == DEFAULT_ROOT / "run-a-b-c"
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
    assert owner_of(environment) == int(environment[OWNER_VARIABLE])
    unmark_owner(environment)
    assert OWNER_VARIABLE in environment, "only the process that set it may take it away"
    monkeypatch.undo()
    mark_owner({})
    unmark_owner(environment)
    assert environment == {"RANK": "0"}


def test_several_hosts_need_a_common_name():
    """Fails when hosts silently record one job as several runs."""
    with pytest.raises(ConfigError, match=r"MESHSCOPE_RUN_DIR: .*several hosts.*meshscope run"):
        default_run_path({"LOCAL_WORLD_SIZE": "4"}, 8)
