"""TOML files that people write for us: what cannot be read is refused with what, where and the remedy."""

from __future__ import annotations

import tomllib
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError

MOST_BYTES = 16 << 20


def read_toml(path: Path, *, remedy: str = "") -> tuple[dict[str, object], bytes]:
    """Return the content of a TOML file, and its bytes; a mark of UTF-8 at its beginning is no content.

    Args:
        path: The file; a pipe too, as a shell makes it of ``<(command)``.
        remedy: What helps if it is no TOML.

    Raises:
        ConfigError: It cannot be read, is longer than ``MOST_BYTES``, or is no TOML.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror or error}", where=str(path), remedy="Check the path"
        ) from error
    if len(raw) > MOST_BYTES:
        raise ConfigError(
            f"is larger than {MOST_BYTES >> 20} MiB, which no such file is",
            where=str(path),
            remedy="Check the path",
        )
    try:
        return tomllib.loads(raw.decode("utf-8-sig")), raw
    except (ValueError, RecursionError) as error:
        # Beside what is no TOML or no UTF-8, ValueError is a number of more digits than Python reads.
        raise ConfigError(f"is not TOML: {error}", where=str(path), remedy=remedy) from error
