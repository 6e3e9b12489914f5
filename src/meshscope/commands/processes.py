"""Whether the processes of a run are still there, as far as this host can see."""

from __future__ import annotations

from pathlib import Path


def are_gone(run: Path) -> bool:
    """Tell whether the processes of all ranks belong to this host and are gone."""
    from meshscope.probe.control.finding import is_alive
    from meshscope.probe.job.lifetimes import is_of_this_host
    from meshscope.probe.schema.errors import MeshscopeError
    from meshscope.probe.schema.manifest import MANIFEST_NAME, rank_directories, read_json

    try:
        parts = rank_directories(run).values()
        # One that is there is enough: thousands of manifests are not read at every look.
        return bool(parts) and all(
            is_of_this_host(one) and type(one.get("pid")) is int and not is_alive(one["pid"])
            for one in (read_json(part / MANIFEST_NAME) for part in parts)
        )
    except (OSError, MeshscopeError):
        return False  # Nobody can tell.
