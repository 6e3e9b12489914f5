"""Which format a file has, by its content."""

from __future__ import annotations

import re

from ..wording.message import Message, message
from .files import InputFile
from .formats import ARCHIVE, FORMATS, UNKNOWN, Container

_BINARY = (
    (b"PAR1", Container.PARQUET),
    (b"SQLite format 3\0", Container.SQLITE),
    (b"\x80", Container.PICKLE),
)
_TEXT = {b"{": Container.OBJECT, b"[": Container.LIST, b"<": Container.MARKUP}
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_TEXT_BYTES = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]*+")
_OF_CONTAINER = {
    Container.OBJECT: message("foreign.other_json"),
    Container.LIST: message("foreign.other_json"),
    Container.MARKUP: message("foreign.other_markup"),
    Container.PICKLE: message("foreign.other_pickle"),
    Container.PARQUET: message("foreign.other_parquet"),
    Container.SQLITE: message("foreign.other_sqlite"),
}
"""What a file is whose content is of no profiler that we know."""
_LIST = re.compile(rb"""\s*\[\s*(?:[\[{"\]]|true|false|null|-?\d[\d.eE+-]*\s*(?:,|\]\s*$))""")
"""How a list of JSON begins, and lines of a log in brackets do not."""
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_SCHEMA = re.compile(rb'"schema"\s*:\s*"')


def classify(file: InputFile) -> str:
    """Return the kind of a file by its first bytes; the name plays no part."""
    head = file.head()
    if head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
        return ARCHIVE
    container = _container_of(head)
    for one in FORMATS:
        mark = None if container is None else one.marks.get(container)
        if mark is not None and mark(file, head):
            return one.kind
    return UNKNOWN


def _container_of(head: bytes) -> Container | None:
    for magic, container in _BINARY:
        if head.startswith(magic):
            return container
    return _TEXT.get(head.lstrip()[:1])


def why_unknown(file: InputFile) -> Message:
    """Return what a file of unknown format is made of."""
    head = file.head()
    if not head:
        return message("foreign.empty")
    if head.startswith(_UTF16_MARKS):
        return message("foreign.wide_text")
    if _NODES.search(head) and _SCHEMA.search(head):
        return message("foreign.execution_trace")
    container = _container_of(head)
    if container is Container.LIST and not _LIST.match(head):
        return message("foreign.other_text")
    if container is not None:
        return _OF_CONTAINER[container]
    if _TEXT_BYTES.fullmatch(head):
        return message("foreign.other_text")
    return message("foreign.other_binary")


WHAT_WE_READ = message("advice.formats", formats=[one.asked for one in FORMATS if one.asked])
"""Remedy of an input in which there is nothing to read."""
