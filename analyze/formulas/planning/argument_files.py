"""Files of names and values as frameworks write them: JSON, flat YAML, or what Megatron prints at its start."""

from __future__ import annotations

import json
import re
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError

from ...wording.message import message

MOST_BYTES = 16 << 20
_PRINTED = re.compile(r"^(?:\[?\w*\d+\]?: *)?\s*(\w+) \.{2,} (.*)$")
"""A line of Megatron's list of arguments: ``  num_layers ............ 32``, after a rank or not."""
_YAML = re.compile(r"^(\s*)(?:--)?([A-Za-z_][\w-]*)\s*:(?:\s+(.*))?$")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None, "": None}


def read_arguments(path: Path) -> dict[str, object]:
    """Return the names and values of a file; those of nested YAML tables by their own names.

    Raises:
        ConfigError: It cannot be read, or holds nothing of this kind.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            message("refused.unreadable", error=error.strerror or str(error)),
            where=str(path),
            remedy=message("advice.path_inside_file"),
        ) from error
    if len(raw) > MOST_BYTES:
        raise ConfigError(message("refused.too_large_file", most_bytes=MOST_BYTES), where=str(path))
    text = raw.decode("utf-8-sig", errors="replace")
    if text.lstrip().startswith("{"):
        return _json(text, path)
    lines = text.splitlines()
    printed = [match for line in lines if (match := _PRINTED.match(line))]
    if printed:
        return {match[1]: read_scalar(match[2]) for match in printed}
    found = {
        match[2].replace("-", "_"): read_scalar(match[3] or "")
        for line in lines
        if not line.lstrip().startswith("#") and (match := _YAML.match(line))
    }
    if not found:
        raise ConfigError(
            message("refused.no_named_values"),
            where=str(path),
            remedy=message("advice.argument_files"),
        )
    return found


def _json(text: str, path: Path) -> dict[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            message("refused.invalid_json", error=str(error)), where=str(path)
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(message("refused.no_json_object"), where=str(path))
    return content


def read_scalar(text: str) -> object:
    """Return the value of a scalar or a list in one line; what is none of these is text."""
    text = text.split(" #", 1)[0].strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text.replace("_", "") if kind is int else text)
        except ValueError:
            continue
    if text[:1] in "[(" and text[-1:] in "])" and "*" not in text:
        return [read_scalar(part) for part in text[1:-1].split(",") if part.strip()]
    return text
