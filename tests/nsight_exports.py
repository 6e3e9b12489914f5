"""SQLite files laid out as `nsys export --type sqlite` documents them, for tests."""

import sqlite3
from contextlib import closing

PID = 24
"""Bits of a serialized thread id below the process."""
HOST_BITS = 0x01 << 48
_ACTIVITY = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, "
    "correlationId INTEGER, globalPid INTEGER"
)
SCHEMA = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "MPI_RANKS": "globalTid INTEGER NOT NULL, rank INTEGER NOT NULL",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, "
    "uuid TEXT, numMultiprocessors INTEGER",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL, "
    "nameEnum INTEGER NOT NULL, value TEXT NOT NULL",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY}, demangledName INTEGER NOT NULL, "
    "shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, "
    "registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, "
    "gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, "
    "blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, "
    "dynamicSharedMemory INTEGER NOT NULL, localMemoryPerThread INTEGER NOT NULL, "
    "localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL, sharedMemoryExecuted INTEGER, "
    "graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, "
    "deprecatedSrcId INTEGER, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, "
    "srcContextId INTEGER, dstDeviceId INTEGER, dstContextId INTEGER, migrationCause INTEGER, "
    "graphNodeId INTEGER, virtualAddress INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY}, value INTEGER NOT NULL, bytes INTEGER NOT NULL, "
    "graphNodeId INTEGER, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_ACTIVITY}, syncType INTEGER NOT NULL, "
    "eventId INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_ACTIVITY}, graphId INTEGER NOT NULL, "
    "graphExecId INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, "
    "eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, "
    "rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, "
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, "
    "int64Value INTEGER, doubleValue REAL, uint32Value INTEGER, int32Value INTEGER, "
    "floatValue REAL, jsonTextId INTEGER, jsonText TEXT, binaryData TEXT",
    "NVTX_PAYLOAD_SCHEMAS": "domainId INTEGER, schemaId INTEGER, name TEXT, type INTEGER, "
    "flags INTEGER, numEntries INTEGER, payloadSize INTEGER, alignTo INTEGER",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, "
    "idx INTEGER NOT NULL, flags INTEGER, type INTEGER, name TEXT, description TEXT, "
    "arrayOrUnionDetail INTEGER, offset INTEGER",
    "ENUM_NSYS_EVENT_TYPE": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_CUDA_MEMCPY_OPER": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_CUPTI_SYNC_TYPE": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
}
"""Columns of the tables, schema version 3.16."""


def process(pid):
    """Return the serialized id of a process."""
    return HOST_BITS | pid << PID


def thread(pid, tid=1):
    """Return the serialized id of a thread."""
    return process(pid) | tid


class Export:
    """Builds one export; the tables come into being with their first row, as they really do."""

    def __init__(self, schema=SCHEMA):
        self.schema = schema
        self.rows = {}
        self.strings = {}
        self.correlation = 0

    def row(self, table, **values):
        """Add a row; columns that may not be null and are not given are 0."""
        self.rows.setdefault(table, []).append(values)
        return self

    def string(self, text):
        """Return the id of an interned text."""
        return self.strings.setdefault(text, len(self.strings) + 1)

    def activity(self, kind, start, end, pid=1, **values):
        """Add a device activity."""
        place = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": process(pid)}
        return self.row(f"CUPTI_ACTIVITY_KIND_{kind}", start=start, end=end, **place | values)

    def kernel(self, name, start, end, pid=1, launch=None, tid=1, **values):
        """Add a kernel, and its launch of 5 ns where it has one."""
        if launch is not None:
            self.correlation += 1
            values["correlationId"] = self.correlation
            self.call("cudaLaunchKernel_v7000", launch, launch + 5, pid, tid, self.correlation)
        text = self.string(name)
        values = {"gridX": 2, "gridY": 1, "gridZ": 1} | values
        return self.activity(
            "KERNEL", start, end, pid, demangledName=text, shortName=text, **values
        )

    def call(self, name, start, end, pid=1, tid=1, correlation=None):
        """Add a call of the host."""
        return self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            start=start, end=end, globalTid=thread(pid, tid), correlationId=correlation,
            nameId=self.string(name),
        )  # fmt: skip

    def nvtx(self, text, start, end, pid=1, tid=1, **values):
        """Add a range that nests on its thread."""
        values = {"eventType": 59, "text": text, "globalTid": thread(pid, tid)} | values
        return self.row("NVTX_EVENTS", start=start, end=end, **values)

    def write(self, path):
        """Write the file; return its path."""
        rows = {**self.rows}
        if self.strings:
            rows["StringIds"] = [{"id": key, "value": text} for text, key in self.strings.items()]
        with closing(sqlite3.connect(path)) as database:
            for table, values in rows.items():
                database.execute(f'CREATE TABLE "{table}" ({self.schema[table]})')
                columns = database.execute(f'PRAGMA table_info("{table}")').fetchall()
                for row in values:
                    self._insert(database, table, columns, row)
            database.commit()
        return path

    @staticmethod
    def _insert(database, table, columns, row):
        given = {
            name: row.get(name, 0 if required else None) for _, name, _, required, _, _ in columns
        }
        assert row.keys() <= given.keys(), row.keys() - given.keys()
        marks = ", ".join("?" * len(given))
        names = ", ".join(f'"{name}"' for name in given)
        database.execute(f'INSERT INTO "{table}" ({names}) VALUES ({marks})', [*given.values()])
