"""Files of names and values as frameworks write them: JSON, flat YAML, or what Megatron prints at its start."""

from __future__ import annotations

import json
import re
from pathlib import Path

from meshscope.probe.schema.errors import ConfigError

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
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            remedy="Check the path: one inside a file counts from the folder of that file",
        ) from error
    if len(raw) > MOST_BYTES:
        raise ConfigError(f"too large (limit {MOST_BYTES >> 20} MiB)", where=str(path))
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
        remedy = "Give JSON, flat YAML, or the list of arguments that Megatron prints"
        raise ConfigError("holds no names with values", where=str(path), remedy=remedy)
    return found


def _json(text: str, path: Path) -> dict[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not valid JSON: {error}", where=str(path)) from error
    if not isinstance(content, dict):
        raise ConfigError("is not a JSON object", where=str(path))
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
