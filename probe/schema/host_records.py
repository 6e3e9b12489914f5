"""Samples of hosts: their binary form in segments, and reading all hosts of a run.

A block holds one Arrow stream for each table that has new rows, in the columns of the
declared tables but for ``host``, which the manifest of the directory says once. The
streams are compressed together, behind four bytes with their length.

Counters of the agent become notes of what they mean for the samples.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .columns import TableSpec
from .errors import RunDirectoryError, SchemaError
from .host_tables import DEVICE, HOST_TABLES, RANK_DEVICE, SAMPLED
from .manifest import MANIFEST_NAME, check_format_version, host_directories, read_json
from .message import message, message_to_cell
from .note import Note, note, of_host
from .printable import printable
from .segment import read_segment, segment_paths

if TYPE_CHECKING:
    import pyarrow as pa


LOST = {
    "disk_floor_dropped": "missing.samples_without_room",
    "row_errors": "missing.unstorable_samples",
    "rows_dropped": "missing.unwritten_samples",
    "segment_records_dropped": "missing.deleted_samples",
    "segment_write_dropped": "missing.unwritten_samples",
}
"""Counters of samples that are not there; the sentence of each says why."""
HARMLESS = frozenset(
    {
        "manifest_write_errors",  # The manifest that is read was written later, or is found missing.
        "recording_errors",  # A recording for another host's replay, which no analysis reads.
        "segment_delete_errors",  # The capture holds more than it should.
        "segment_write_errors",  # The samples of it are counted too.
        "segments_dropped",  # The samples of them are counted too.
    }
)
"""Counters that change no number: what they stand for is counted or found elsewhere."""


def host_counters(host: str, counters: Mapping[str, object]) -> Iterator[Note]:
    """Yield one note for each counter of an agent that is not zero."""
    for name, amount in sorted(counters.items()):
        if type(amount) is not int or amount <= 0:
            continue
        code = LOST.get(name)
        if code is None:
            yield note(
                "counted.by_probe", who=of_host(host), amount=amount, counter=printable(name)
            )
        else:
            yield Note(code, {"host": host, "amount": amount})


Row = Mapping[str, Any]

_LENGTH = struct.Struct("<I")
_MOST_PLAIN_BYTES = 256 << 20
"""A block that claims more is not read."""

_TABLE_KEY = b"meshscope.table"
_SHORT_UUID = ("GPU-", "MIG-")


@dataclass(slots=True)
class HostRecords:
    """What the agents of a run wrote."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    """The host tables by name; those without rows are left out."""
    manifests: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The readable manifests by host."""


def stored_form(name: str) -> TableSpec:
    """Return the columns of a table as segments hold them."""
    spec = HOST_TABLES[name]
    return TableSpec(name, spec.row, tuple(c for c in spec.columns if c.name != "host"))


def encode_rows(rows: Mapping[str, Sequence[Row]]) -> bytes:
    """Return rows, by table, as the payload of one block.

    Raises:
        SchemaError: A row lacks a value that may not be null, or has one of another type.
    """
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(use_threads=False)
    for name, own in rows.items():
        if not own:
            continue
        spec = stored_form(name)
        columns = {c.name: [row.get(c.name) for row in own] for c in spec.columns}
        try:
            table = spec.conform(pa.table(columns))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise SchemaError(message("refused.not_storable", error=error), where=name) from error
        with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(table)
    plain = sink.getvalue()
    compressed: bytes = pa.Codec("zstd").compress(plain, asbytes=True)
    return _LENGTH.pack(plain.size) + compressed


def decode_rows(payload: bytes) -> Iterator[pa.Table]:
    """Read what ``encode_rows`` made; the name of each table is in its schema's metadata.

    Raises:
        ValueError: It is no such payload (``pyarrow.ArrowInvalid`` is a ValueError), or of an
            unknown table.
        OSError: It cannot be decompressed.
        SchemaError: A table has other columns than declared.
    """
    import pyarrow as pa

    if len(payload) < _LENGTH.size or _LENGTH.unpack_from(payload)[0] > _MOST_PLAIN_BYTES:
        raise ValueError("is too short, or claims too much")
    (size,) = _LENGTH.unpack_from(payload)
    plain = pa.Codec("zstd").decompress(payload[_LENGTH.size :], decompressed_size=size)
    source = pa.BufferReader(plain)
    while source.tell() < source.size():
        with pa.ipc.open_stream(source) as stream:
            table = stream.read_all()
        name = (table.schema.metadata or {}).get(_TABLE_KEY, b"").decode(errors="replace")
        if name not in SAMPLED:
            raise ValueError(f"holds rows of an unknown table {name!r}")
        yield stored_form(name).conform(table)


def read_hosts(
    path: Path, rank_manifests: Mapping[int, Mapping[str, Any]], limits: list[Note]
) -> HostRecords:
    """Read the directories of all hosts of a run; what is missing is added to the limits.

    Args:
        path: The run directory.
        rank_manifests: The manifests of its ranks, which say on which device each runs.
        limits: Limits so far, extended in place.

    Raises:
        FormatVersionError: A host was written by another format version.
    """
    import pyarrow as pa

    found = HostRecords()
    pieces: dict[str, list[pa.Table]] = {}
    for name, directory in host_directories(path).items():
        manifest = _read_manifest(directory, name, limits)
        host = _text(manifest.get("host")) or name
        if host in found.manifests:
            host = name  # Two machines of one name.
        found.manifests[host] = manifest
        for table in _read_segments(directory, name, limits):
            table_name = table.schema.metadata[_TABLE_KEY].decode()
            whole = table.append_column("host", pa.array([host] * table.num_rows, pa.string()))
            pieces.setdefault(table_name, []).append(HOST_TABLES[table_name].conform(whole))
    for name, parts in pieces.items():
        found.tables[name] = pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    devices = _devices(found.manifests)
    for spec, rows in (
        (DEVICE, devices),
        (RANK_DEVICE, _rank_devices(rank_manifests, found, devices)),
    ):
        try:
            if rows:
                found.tables[spec.name] = spec.conform(pa.Table.from_pylist(rows))
        except (SchemaError, pa.ArrowException, OverflowError) as error:
            limits.append(note("unknown.devices", damage=str(error)))
    return found


def _read_manifest(directory: Path, name: str, limits: list[Note]) -> dict[str, Any]:
    path = directory / MANIFEST_NAME
    try:
        manifest = read_json(path)
    except RunDirectoryError as error:
        limits.append(note("unknown.devices_of_host", host=name, damage=error.what))
        return {}
    check_format_version(manifest.get("format_version"), str(path))
    counters = manifest.get("counters")
    limits += host_counters(name, counters if isinstance(counters, dict) else {})
    unopened = manifest.get("devices_not_found")
    for device, reason in sorted(unopened.items() if isinstance(unopened, dict) else ()):
        limits.append(
            note(
                "missing.device_unopened",
                host=name,
                device=printable(str(device)),
                reason=printable(str(reason)),
            )
        )
    return manifest


def _read_segments(directory: Path, name: str, limits: list[Note]) -> Iterator[pa.Table]:
    import pyarrow as pa

    try:
        segments = segment_paths(directory)
    except OSError as error:
        limits.append(note("missing.folder_unlisted", who=of_host(name), reason=error.strerror))
        return
    for path in segments.values():
        try:
            contents = read_segment(path)
        except FileNotFoundError:
            continue  # A live agent dropped its oldest segment.
        except OSError as error:
            limits.append(
                note(
                    "missing.file_unreadable",
                    who=of_host(name),
                    file=path.name,
                    reason=error.strerror,
                )
            )
            continue
        limits += [
            note("missing.file_damaged", who=of_host(name), file=path.name, damage=problem)
            for problem in contents.problems
        ]
        for payload in contents.payloads:
            try:
                yield from decode_rows(payload)
            except (ValueError, OSError, SchemaError, pa.ArrowException) as error:
                limits.append(
                    note(
                        "missing.rest_of_block",
                        who=of_host(name),
                        file=path.name,
                        damage=str(error),
                    )
                )


def _devices(manifests: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row a device from the manifests; entries of the wrong kind are left out."""
    kinds = {"name": str, "index": int, "pci_bus": str, "mem_total_bytes": int}
    rows = []
    for host, manifest in manifests.items():
        listed = manifest.get("devices")
        for entry in listed if isinstance(listed, list) else ():
            if not isinstance(entry, dict) or not _text(entry.get("uuid")):
                continue
            row: dict[str, Any] = {"host": host, "uuid": entry["uuid"]}
            for key, kind in kinds.items():
                value = entry.get(key)
                row[key] = value if type(value) is kind else None
            for key in ("max_clock_hz", "pcie_bytes_per_s", "nvlink_bytes_per_s"):
                number = entry.get(key)
                row[key] = None
                if isinstance(number, int | float) and not isinstance(number, bool):
                    row[key] = float(number)
            rows.append(row)
    return rows


def _rank_devices(
    rank_manifests: Mapping[int, Mapping[str, Any]],
    found: HostRecords,
    devices: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the device of each rank: as the rank says, else by the driver's process list.

    A process id names a rank only where rank and agent are on one boot of one machine.
    """
    places = {plain_uuid(row["uuid"]): (row["host"], row["uuid"]) for row in devices}
    by_process = _device_of_process(found)
    boots = {host: _text(m.get("boot_id")) for host, m in found.manifests.items()}
    rows = []
    for rank, manifest in sorted(rank_manifests.items()):
        place = places.get(plain_uuid(_stated_uuid(manifest) or ""))
        evidence = message("evidence.device_stated")
        if place is None:
            boot, evidence = _text(manifest.get("boot_id")), message("evidence.device_of_process")
            pid = manifest.get("pid")
            is_known = boot is not None and type(pid) is int
            hosts = [host for host, own in boots.items() if is_known and own == boot]
            place = next((p for h in hosts if (p := by_process.get((h, pid)))), None)
        if place is not None:
            host, uuid = place
            cell = message_to_cell(evidence)
            rows.append({"rank": rank, "host": host, "uuid": uuid, "evidence": cell})
    return rows


def _stated_uuid(manifest: Mapping[str, Any]) -> str | None:
    """Return the device that a rank says it runs on, from its start or found out later."""
    notes = manifest.get("annotations")
    later = notes.get("device_uuid") if isinstance(notes, dict) else None
    return _text(manifest.get("device_uuid")) or _text(later)


def _device_of_process(found: HostRecords) -> dict[tuple[str, Any], tuple[str, str]]:
    """Return the device of each process that was seen on one device only."""
    table = found.tables.get("device_process")
    if table is None:
        return {}
    seen = table.group_by(["host", "pid", "uuid"]).aggregate([]).to_pylist()
    devices: dict[tuple[str, Any], set[str]] = {}
    for row in seen:
        devices.setdefault((row["host"], row["pid"]), set()).add(row["uuid"])
    return {key: (key[0], next(iter(own))) for key, own in devices.items() if len(own) == 1}


def plain_uuid(uuid: str) -> str:
    """Return a device's uuid in one form: NVML puts a prefix before what torch gives."""
    for prefix in _SHORT_UUID:
        uuid = uuid.removeprefix(prefix)
    return uuid.lower()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
