"""The facts about an NDTimeline job in the ``meta-*.yaml`` beside its trace."""

from __future__ import annotations

from pathlib import Path

_DEFAULTS: dict[str, object] = {
    "trial_name": None,
    "run_id": 0,
    "dp_size": 1,
    "pp_size": 1,
    "tp_size": 1,
    "dsp_size": 1,
    "vpp_size": 1,
    "world_size": 1,
}
"""What the published tool assumes where a key is absent."""


def read_meta(parquet: Path) -> dict[str, object] | None:
    """Return name, run and sizes from the flat ``key: value`` file, or None without a file.

    The file is ``meta-<name>.yaml`` for ``trace-<name>.parquet``, or the only ``meta-*.yaml`` there.
    """
    own = parquet.with_name(f"meta-{parquet.stem.removeprefix('trace-')}.yaml")
    others = sorted(parquet.parent.glob("meta-*.yaml"))
    if not own.is_file():
        if len(others) != 1:
            return None
        own = others[0]
    meta = dict(_DEFAULTS)
    for line in own.read_text(encoding="utf-8", errors="replace").splitlines():
        key, colon, value = line.partition("#")[0].partition(":")
        if colon and key.strip() in meta:
            meta[key.strip()] = _scalar(value.strip())
    return meta


def _scalar(value: str) -> object:
    return int(value) if value.isdigit() else value.strip("'\"")
