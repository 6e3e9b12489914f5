"""TOML files that people write for us: what cannot be read is refused with what, where and the remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError

from ..wording.message import Text, message

MOST_BYTES = 16 << 20
"""What people write by hand is far smaller; a trace or a checkpoint given by mistake is refused at once."""


def read_bounded(path: Path, *, remedy: Text = "") -> bytes:
    """Return the bytes of a file that a person has named.

    Args:
        path: The file; a pipe too, as a shell makes it of ``<(command)``.
        remedy: What helps if it cannot be read; by default, to check the path.

    Raises:
        ConfigError: It cannot be read, or is longer than ``MOST_BYTES``.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            message("refused.unreadable", error=error.strerror or str(error)),
            where=str(path),
            remedy=remedy or message("advice.path"),
        ) from error
    if len(raw) > MOST_BYTES:
        raise ConfigError(
            message("refused.too_large_file", most_bytes=MOST_BYTES),
            where=str(path),
            remedy=message("advice.path"),
        )
    return raw


def read_toml(path: Path, *, remedy: Text = "") -> tuple[dict[str, object], bytes]:
    """Return the content of a TOML file, and its bytes; a mark of UTF-8 at its beginning is no content.

    Args:
        path: The file; a pipe too, as a shell makes it of ``<(command)``.
        remedy: What helps if it is no TOML.

    Raises:
        ConfigError: It cannot be read, is longer than ``MOST_BYTES``, or is no TOML.
    """
    raw = read_bounded(path)
    try:
        return tomllib.loads(raw.decode("utf-8-sig")), raw
    except (ValueError, RecursionError) as error:
        # Beside what is no TOML or no UTF-8, ValueError is a number of more digits than Python reads.
        raise ConfigError(
            message("refused.no_toml", error=str(error)), where=str(path), remedy=remedy
        ) from error


def table_of(content: Mapping[str, object], name: str, path: Path) -> dict[str, object]:
    """Return a table of a file, empty where it has none.

    Raises:
        ConfigError: Something else has that name.
    """
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(
            message("refused.no_table"),
            where=f"{path}: {name}",
            remedy=message("advice.write_above", name=name),
        )
    return table


def only_known(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Refuse fields that nobody would read: a misspelt one must not pass in silence.

    Raises:
        ConfigError: There is one.
    """
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(
            message("refused.unknown_field", name=unknown[0]),
            where=where,
            remedy=message("advice.use", known=list(known)),
        )
