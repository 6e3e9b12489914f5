"""Words in sentences: small grammar, and the names of classes and places, the same everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os import waitstatus_to_exitcode
from signal import Signals
from typing import Any

from meshscope.probe.schema.printable import MOST_LISTED, listed


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 rank``, ``2 ranks``, ``2 microbatches``."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 'sh', 's', 'x')) else 's'}"


def joined(items: Sequence[str], word: str = "and") -> str:
    """Return items as a list in a sentence: ``none``, ``a``, ``a and b``, ``a, b and c``."""
    *first, last = items or ("none",)
    return f"{', '.join(first)} {word} {last}" if first else last


_FILE = re.compile(r"[^\s:]*[/\w-][./\\][\w-]")
"""A word with a dot or a slash inside."""


def capitalised(clause: str) -> str:
    """Return a clause with its first letter large; the name of a file at its beginning stays as it is.

    >>> capitalised("two hosts"), capitalised("job.toml states two hosts")
    ('Two hosts', 'job.toml states two hosts')
    """
    if _FILE.match(clause):
        return clause
    return f"{clause[:1].upper()}{clause[1:]}"


def sentence(clause: str) -> str:
    """Return a clause as a sentence: first letter large, a full stop at the end."""
    return capitalised(clause) + ("" if clause.endswith((".", "?", "!")) else ".")


def is_missing(value: object) -> bool:
    """Return whether a value is None, NaN or pandas' NA."""
    return value is None or str(value) in ("nan", "<NA>")


_NAMES = {
    "useful": "useful model FLOPs at peak",
    "kernel_inefficiency": "compute, slower than peak",
    "contention": "compute, slowed by communication",
    "clock": "compute, below the full clock",
    "memory_bound": "compute, bound by memory bandwidth",
    "compute": "device compute",
    "compute_or_communication": "compute and communication, not separated",
    "exposed_sums": "communication: waiting or wire",
    "data_load": "data loading",
    "gc": "garbage collection",
    "host_blocked": "host blocked",
    "exposed_unknown": "device work of unknown kind",
    "exposed_memcpy": "exposed memory copies",
    "other": "other host time",
    "unattributed": "idle or not recorded",
    "not_in_step": "ranks not in the step",
}


def axis_label(axis: str) -> str:
    """Return an axis as people write it: ``TP``; ``other`` is no name of one."""
    return axis if axis == "other" else axis.upper()


def operations_label(kind: str) -> str:
    """Return an operation of communication in the plural: ``all-reduces``."""
    own = kind.replace("_", "-").replace("all-to-all", "all-to-all exchange")
    return f"{own}s"


def class_label(name: str) -> str:
    """Return the words for a class of time.

    >>> class_label("exposed_tp_wait")
    'TP communication: waiting'
    """
    parts = name.split("_")
    if len(parts) == 3 and parts[0] == "exposed" and parts[2] in ("wait", "wire"):
        return f"{axis_label(parts[1])} communication: {'waiting' if parts[2] == 'wait' else 'on the wire'}"
    return _NAMES.get(name, name.replace("_", " "))


def rank_words(ranks: Sequence[int]) -> str:
    """Return ranks in words: ``rank 3``, ``ranks 3 and 5``; of very many the first ones.

    >>> rank_words([1, 2, 5])
    'ranks 1, 2 and 5'
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MOST_LISTED:
        return f"ranks {listed(ranks)}"
    return f"ranks {joined(list(map(str, ranks)))}"


def exit_words(wait_status: int) -> str:
    """Return how a process ended, of what ``wait`` tells.

    >>> exit_words(9), exit_words(256)
    ('SIGKILL', 'exit code 1')
    """
    try:
        code = waitstatus_to_exitcode(wait_status)
    except (ValueError, OverflowError):
        return f"wait status {wait_status}"
    if code >= 0:
        return f"exit code {code}"
    return Signals(-code).name if -code in set(Signals) else f"signal {-code}"


def place_words(where: Mapping[str, Any]) -> str:
    """Return a place in words; ranks of one axis are a group of it.

    >>> place_words({"ranks": [3, 5], "stage": 1})
    'ranks 3 and 5, stage 1'
    """
    parts = []
    for key, value in where.items():
        if key == "steps" and value:
            one = value[0] == value[-1]
            parts.append(f"step {value[0]}" if one else f"steps {value[0]} to {value[-1]}")
        elif key == "axis" and value:
            parts.append(f"{axis_label(str(value))} {'group' if where.get('ranks') else 'axis'}")
        elif isinstance(value, list):
            parts.append(rank_words(value) if value else "")
        elif value is not None:
            parts.append(f"{key.replace('_id', '')} {value}")
    return ", ".join(part for part in parts if part)
