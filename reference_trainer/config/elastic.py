"""What a run takes from the size of the job that it finds itself in.

torchrun may start a job with fewer ranks than before: a node is gone, and ``--nnodes MIN:MAX``
goes on without it. With ``layout.dp = "auto"`` the ranks that are there decide how many
replicas there are; the other axes are what the model was split for, and stay. The global
batch stays too, so that each replica gets more of it, unless ``train.replica_batch`` says
what a replica can take.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message

from .launcher import number_of

AUTO = "auto"
LAUNCH = message("advice.torchrun_or_unset")
"""What to do where a rank's variables are wrong."""
_OTHER_AXES = ("tp", "pp", "cp")


def job_size(environment: Mapping[str, str]) -> int:
    """Return the ranks of the job, as torchrun says; one without it.

    Raises:
        ConfigError: What it says is no number.
    """
    if "WORLD_SIZE" not in environment:
        return 1
    return number_of(environment, "WORLD_SIZE", remedy=LAUNCH)


def check_job_size(layout: ParallelLayout, world_size: int) -> None:
    """Refuse a job with another number of ranks than the layout.

    Raises:
        ConfigError: It has more or fewer.
    """
    if world_size != layout.world_size:
        raise ConfigError(
            message("refused.ranks_of_job", ranks=layout.world_size, world_size=world_size),
            where="layout",
            remedy=message("advice.torchrun", world_size=layout.world_size),
        )


def fit_job(raw: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """Return a configuration's tables with what follows from the size of the job.

    Args:
        raw: The tables, not yet validated.
        world_size: Ranks of the job.

    Raises:
        ConfigError: The ranks are no whole number of replicas.
    """
    fitted = dict(raw)
    layout, train = raw.get("layout", {}), raw.get("train", {})
    if isinstance(layout, Mapping) and layout.get("dp") == AUTO:
        layout = {**layout, "dp": _replicas(layout, world_size)}
        fitted["layout"] = layout
    if isinstance(train, Mapping) and isinstance(layout, Mapping):
        batch, replicas = train.get("replica_batch", 0), layout.get("dp", 1)
        # What is no number of sequences keeps its name, under which it is refused.
        if isinstance(batch, int) and isinstance(replicas, int) and batch > 0:
            fitted["train"] = {**train, "global_batch": batch * replicas}
    return fitted


def _replicas(layout: Mapping[str, Any], world_size: int) -> int:
    """Return how many replicas of the given axes the ranks make."""
    sizes = [layout.get(axis, 1) for axis in _OTHER_AXES]
    replica = prod(size for size in sizes if isinstance(size, int) and size > 0)
    if world_size % replica:
        raise ConfigError(
            message("refused.no_whole_replicas", world_size=world_size, replica=replica),
            where="layout.dp",
            remedy=message("advice.whole_replicas", replica=replica),
        )
    return world_size // replica


def warning_of_restarts(environment: Mapping[str, str]) -> str | None:
    """Return what may go wrong when torchrun restarts this job; None for nothing.

    Restarted workers that meet at the agent's own store may read addresses of workers
    that are gone (pytorch issue 135712).
    """
    shares = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if shares and environment.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        return (
            "note: a restart may fail to connect; start torchrun with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        )
    return None
