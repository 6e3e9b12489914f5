"""Words for the classes of the account, the same in every report and figure."""

from __future__ import annotations

_NAMES = {
    "useful": "useful model FLOPs at peak",
    "kernel_inefficiency": "compute, slower than peak",
    "contention": "compute, slowed by communication",
    "compute": "device compute",
    "data_load": "data loading",
    "gc": "garbage collection",
    "host_blocked": "host blocked",
    "exposed_unknown": "device work of unknown kind",
    "exposed_memcpy": "exposed memory copies",
    "other": "other host time",
    "unattributed": "not attributed",
}


def class_label(name: str) -> str:
    """Return the words for a class of time.

    >>> class_label("exposed_tp_wait")
    'TP communication: waiting'
    """
    parts = name.split("_")
    if len(parts) == 3 and parts[0] == "exposed" and parts[2] in ("wait", "wire"):
        axis = "other" if parts[1] == "other" else parts[1].upper()
        return f"{axis} communication: {'waiting' if parts[2] == 'wait' else 'on the wire'}"
    return _NAMES.get(name, name.replace("_", " "))
