"""From the variables of SLURM to those of torchrun."""

from __future__ import annotations

import pytest

from meshscope.probe.schema.errors import ConfigError
from meshscope.reference_trainer.config.launcher import first_host, torchrun_environment

TASK = {
    "SLURM_JOB_ID": "41007",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "20",
    "SLURM_NTASKS": "99",
    "SLURM_PROCID": "17",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2),4",
    "SLURM_STEP_NODELIST": "gpu[007-008],big3",
}


def test_a_task_of_srun_is_a_rank():
    """Fails if a task takes another place than the one that SLURM gave it."""
    assert torchrun_environment(TASK) == {
        "RANK": "17",
        "WORLD_SIZE": "20",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "gpu007",
        "MASTER_PORT": "21009",
    }


def test_a_meeting_place_that_is_set_is_kept():
    """Fails if a user cannot name the interface on which ranks meet."""
    found = torchrun_environment(TASK | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "5000"})
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.1", "5000")


@pytest.mark.parametrize("environment", [{}, TASK | {"RANK": "0"}])
def test_torchrun_comes_first_and_a_plain_process_stays_alone(environment):
    """Fails if torchrun under SLURM is overruled, or a lone process becomes a rank of a job."""
    assert torchrun_environment(environment) == {}


def test_the_batch_script_itself_is_no_rank():
    """Fails if a trainer in a batch script, without srun, waits for ranks that never come."""
    script = {name: value for name, value in TASK.items() if name != "SLURM_STEP_ID"}
    assert torchrun_environment(script) == {}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1,4-6],m1", "n1"),
        ("n[004-006]", "n004"),
        ("r[2-3]n[07-09,11]-ib,x", "r2n07-ib"),
    ],
)
def test_the_first_host_of_a_short_list(nodes, first):
    """Fails if ranks look for each other at a host that does not exist."""
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SLURM_LOCALID": ""}, "SLURM_LOCALID: is not set"),
        ({"SLURM_PROCID": "x"}, "SLURM_PROCID: 'x' is not a number"),
        ({"SLURM_NODEID": "3"}, "has no count for node 3"),
    ],
)
def test_what_slurm_leaves_out_is_named(change, message):
    """Fails if a broken environment ends in a traceback, or in a job that never starts."""
    with pytest.raises(ConfigError, match=message):
        torchrun_environment(TASK | change)
