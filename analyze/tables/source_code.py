"""A number for the source code that results were made by: what is kept of another version is stale.

A version that somebody has to raise by hand is forgotten, and then an upgrade shows what the old code found.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import meshscope

DERIVING = ("analyze/align", "analyze/load", "analyze/read", "analyze/tables")
"""What makes tables of files, beside ``RECORDED``."""
RECORDED = ("probe/reader", "probe/schema")
"""What reads the files of the probe."""
ANALYSING = ("analyze", *RECORDED)
"""What makes findings of tables."""


@cache
def code_version(packages: tuple[str, ...]) -> str:
    """Return sixteen digits that change with the source of some packages, wherever it is installed.

    Takes 5 ms for two hundred files. Where there are no source files, the version of the distribution counts.

    Args:
        packages: Their folders, from that of ``meshscope``.
    """
    root = Path(meshscope.__file__).parent
    whole = hashlib.sha256(meshscope.__version__.encode())
    for package in packages:
        for file in sorted((root / package).rglob("*")):
            if file.suffix in (".py", ".toml"):
                whole.update(f"\0{file.relative_to(root).as_posix()}\0".encode())
                whole.update(file.read_bytes())
    return whole.hexdigest()[:16]
