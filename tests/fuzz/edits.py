"""Damage for good files: edits of bytes, and values of other kinds in JSON."""

import gzip
import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

_INSERTS = (
    b'"', b"}", b"]", b"[", b"{", b"\\", b",", b":", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"NaN",
    b"1e400", b"-", b"9" * 30,
)  # fmt: skip
VALUES = (
    None, True, "", "x", -1, 0, 1.5, 1e308, -0.0, float("nan"), float("inf"), 1 << 53, 1 << 63,
    1 << 64, -(1 << 63), 10**30, "1e5", " 7 ", "\x00\x1b[31m<script>", "1" * 5000, [], {}, [[[]]],
    {"a": {"b": [1]}},
)  # fmt: skip
"""What JSON may hold where something else is meant."""


@st.composite
def edited(draw: st.DrawFn, content: bytes) -> bytes:
    """Return content after a few edits of its bytes, cut off or compressed and cut off."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from((1, 3, 50)))
        piece = draw(
            st.sampled_from((b"", content[at : at + 30], *_INSERTS)) | st.binary(max_size=4)
        )
        content = content[:at] + piece + content[at + draw(st.sampled_from((0, length))) :]
    kind = draw(st.sampled_from(("as it is", "cut", "compressed", "compressed and cut")))
    if kind.startswith("compressed"):
        content = gzip.compress(content, mtime=0)
    return content[: draw(st.integers(0, len(content)))] if kind.endswith("cut") else content


@st.composite
def swapped(draw: st.DrawFn, content: bytes) -> bytes:
    """Return JSON, or lines of it, with up to three values replaced, removed or doubled."""
    lines = [json.loads(line) for line in content.splitlines() if line.strip()]
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([path for path in _paths(lines) if path]))
        _change(lines, path, draw(st.sampled_from(("swap", "swap", "remove", "double"))), draw)
        if not lines:
            break
    return b"\n".join(json.dumps(line).encode() for line in lines)


def _change(value: Any, path: Path, how: str, draw: st.DrawFn) -> None:
    for key in path[:-1]:
        value = value[key]
    if how == "remove":
        del value[path[-1]]
    elif how == "double" and isinstance(value, list):
        value.insert(int(path[-1]), deepcopy(value[path[-1]]))
    else:
        # A copy: a later change may be inside of it, and would be in all documents from then on.
        value[path[-1]] = deepcopy(draw(st.sampled_from(VALUES)))


def _paths(value: Any, above: Path = ()) -> Iterator[Path]:
    """Yield where each value is, from the top."""
    yield above
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from _paths(value[key], (*above, key))
