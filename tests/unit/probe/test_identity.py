"""All ranks of a job name the same run directory without talking to each other."""

from pathlib import Path

import pytest

from meshscope.probe.identity import DEFAULT_ROOT, Identity, default_run_path, identify
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


def test_a_restarted_job_is_a_run_of_its_own():
    """Fails when the ranks of a second attempt find their directories taken and record nothing."""
    again = {"MESHSCOPE_RUN_DIR": "/runs/a", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert default_run_path(again, 8) == Path("/runs/a-restart2")


def test_several_hosts_need_a_common_name():
    """Fails when hosts silently record one job as several runs."""
    with pytest.raises(ConfigError, match=r"MESHSCOPE_RUN_DIR: .*several hosts.*meshscope run"):
        default_run_path({"LOCAL_WORLD_SIZE": "4"}, 8)
