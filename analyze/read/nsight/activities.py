"""What the device did and what the host asked it for, of all processes of an Nsight export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshscope.probe.schema.terms import DeviceInterface, KernelCategory

from ..kernel_names import kernel_category
from ..kineto.event_columns import CATEGORIES, INTERFACES
from .database import MISSING, Database, IntArray, Rows
from .ranges import process_of

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
GRAPH_NAME = "[CUDA graph]"
"""Name of a graph that was traced as a whole."""
_OTHERS = (
    ("MEMCPY", KernelCategory.MEMCPY, "[CUDA memcpy{}]", ("copyKind", "ENUM_CUDA_MEMCPY_OPER")),
    ("MEMSET", KernelCategory.MEMSET, "[CUDA memset]", None),
    ("SYNCHRONIZATION", KernelCategory.SYNC, "[CUDA sync{}]", ("syncType", "ENUM_CUPTI_SYNC_TYPE")),
    ("GRAPH_TRACE", KernelCategory.UNKNOWN, GRAPH_NAME, None),
)
"""Tables of device activities beside kernels: category, name, and the column that completes it."""
_PLACE = ("deviceId", "streamId", "correlationId", "globalPid")
_NO_NAME = "[unknown]"
_DRIVER_CALL = "cu"
_RUNTIME_CALL = "cuda"


class Names:
    """Codes of texts, over all tables of a file.

    Args:
        known: Texts that have codes already, by their places.
    """

    def __init__(self, known: Sequence[str]) -> None:
        self.texts = list(known)
        self._code_of = {text: code for code, text in enumerate(self.texts)}

    def code(self, text: str) -> int:
        """Return the code of a text."""
        code = self._code_of.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code

    def of(self, ids: IntArray, found: dict[int, str]) -> IntArray:
        """Return the codes of interned texts; those that are not there have one name."""
        distinct, place = np.unique(ids, return_inverse=True)
        codes = [self.code(found.get(key) or _NO_NAME) for key in distinct.tolist()]
        return np.array(codes, dtype=np.int64)[place.reshape(-1)]


@dataclass(frozen=True, slots=True)
class Activities:
    """Columns of the same length: device activities, or calls of the host."""

    columns: dict[str, IntArray]
    """start, end, name, category, correlation, process; of the device also device, stream,
    size_bytes and blocks, of the host also thread."""
    lost: int
    """Rows without times."""

    def of_process(self, process: int) -> dict[str, IntArray]:
        """Return the rows of one process, in the order of their starts."""
        own = np.flatnonzero(self.columns["process"] == process)
        own = own[np.argsort(self.columns["start"][own], kind="stable")]
        return {name: column[own] for name, column in self.columns.items()}

    def with_process(self, process: int) -> Activities:
        """Return the rows with those that name no process given to this one."""
        own = self.columns["process"]
        return Activities(
            {**self.columns, "process": np.where(own == MISSING, process, own)}, self.lost
        )


def read_device(database: Database, names: Names) -> Activities:
    """Return the device activities of a file.

    Raises:
        TraceFormatError: The file is damaged.
    """
    parts = [_kernels(database, names)]
    for table, category, pattern, detail in _OTHERS:
        column, enum = detail or ("", "")
        rows = database.events(f"CUPTI_ACTIVITY_KIND_{table}", (*_PLACE, "bytes", column))
        label = {
            key: f" {text}" for key, text in database.pairs(enum, "id", "label") if enum and text
        }
        distinct, place = np.unique(rows.columns[column], return_inverse=True)
        codes = [names.code(pattern.format(label.get(key, ""))) for key in distinct.tolist()]
        parts.append(
            _device_columns(
                rows,
                np.array(codes, dtype=np.int64)[place.reshape(-1)],
                np.full(len(rows), CATEGORIES.index(category), dtype=np.int64),
                np.full(len(rows), -1, dtype=np.int64),
            )
        )
    return _joined(parts)


def _kernels(database: Database, names: Names) -> Activities:
    name = database.first_of(_KERNEL, "demangledName", "shortName", "mangledName", "name")
    sizes = ("gridX", "gridY", "gridZ")
    rows = database.events(_KERNEL, (*_PLACE, "bytes", name, *sizes))
    ids = rows.columns[name]
    code = names.of(ids, database.strings(ids))
    category_of = np.full(len(names.texts), -1, dtype=np.int64)
    for key in np.unique(code).tolist():
        category_of[key] = CATEGORIES.index(kernel_category(names.texts[key]))
    grid = np.stack([rows.columns[size] for size in sizes])
    is_known = (grid > 0).all(axis=0) & (grid < 1 << 20).all(axis=0)
    blocks = np.where(is_known, np.where(is_known, grid, 1).prod(axis=0), -1)
    return _device_columns(rows, code, category_of[code], blocks)


def _device_columns(rows: Rows, name: IntArray, category: IntArray, blocks: IntArray) -> Activities:
    columns = rows.columns
    return Activities(
        {
            "start": columns["start"],
            "end": columns["end"],
            "name": name,
            "category": category,
            "correlation": columns["correlationId"],
            "process": columns["globalPid"],
            "device": columns["deviceId"].astype(np.int32).astype(np.int64),
            "stream": columns["streamId"],
            "size_bytes": columns["bytes"],
            "blocks": blocks,
        },
        rows.lost,
    )


def _joined(parts: Sequence[Activities]) -> Activities:
    keys = parts[0].columns.keys()
    return Activities(
        {key: np.concatenate([part.columns[key] for part in parts]) for key in keys},
        sum(part.lost for part in parts),
    )


def read_calls(database: Database, names: Names) -> Activities:
    """Return the calls of the host into the runtime and driver of its device.

    Raises:
        TraceFormatError: The file is damaged.
    """
    rows = database.events(_CALLS, ("globalTid", "correlationId", "nameId"))
    columns = rows.columns
    code = names.of(columns["nameId"], database.strings(columns["nameId"]))
    interface_of = np.array([INTERFACES.index(_interface(text)) for text in names.texts])
    return Activities(
        {
            "start": columns["start"],
            "end": columns["end"],
            "name": code,
            "category": interface_of.astype(np.int64)[code] if len(code) else code,
            "correlation": columns["correlationId"],
            "process": process_of(columns["globalTid"]),
            "thread": columns["globalTid"],
        },
        rows.lost,
    )


def _interface(name: str) -> DeviceInterface:
    is_driver = name.startswith(_DRIVER_CALL) and not name.startswith(_RUNTIME_CALL)
    return DeviceInterface.DRIVER if is_driver else DeviceInterface.RUNTIME
