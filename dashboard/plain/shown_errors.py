"""Errors as a page shows them: their paths from the folder of runs on, which the reader knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from meshscope.probe.schema.errors import MeshscopeError, RunDirectoryError
from meshscope.probe.schema.message import Message


def shown_from(error: MeshscopeError, folder: Path) -> RunDirectoryError:
    """Return an error with its codes and values, without a folder before its paths."""
    said = {name: _shown(value, f"{folder}/") for name, value in error.said.items()}
    return RunDirectoryError(**said, where=error.where.replace(f"{folder}/", ""))


def _shown(value: Any, prefix: str) -> Any:
    if isinstance(value, Message):
        kept = {name: _shown(one, prefix) for name, one in value.values.items()}
        return replace(value, values=kept)
    if isinstance(value, list | tuple):
        return [_shown(one, prefix) for one in value]
    return str(value).replace(prefix, "") if isinstance(value, str | Path | Exception) else value
