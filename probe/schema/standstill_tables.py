"""The tables of a capture that broke off: how far its ranks came, and where they stood."""

from .columns import RANK, Column, TableSpec, ns_column
from .imported_tables import COLLECTIVE_CALL

NO_GROUP = ""
"""The group in the row of a rank of which no collective was recorded."""
_OF_CALL = ("input_bytes", "output_bytes", "input_splits", "output_splits", "elements", "place")

PROGRESS = TableSpec(
    "progress",
    "one process group on one rank whose capture broke off",
    (
        RANK,
        Column(
            "group_id",
            "category",
            "id",
            "process group; empty in the one row of a rank of which no collective was recorded",
        ),
        Column(
            "issued_seq",
            "int64",
            "id",
            "last collective that the rank issued, 0 or -1 if none; null where its communication was not "
            "recorded any more, or at all",
            nullable=True,
        ),
        Column(
            "completed_seq",
            "int64",
            "id",
            "last collective that was complete there, 0 or -1 if none",
            nullable=True,
        ),
        Column(
            "alive_ns",
            "int64",
            "ns",
            "when the process of the rank last gave a sign of life",
            nullable=True,
        ),
        Column("ended_ns", "int64", "ns", "when that process ended", nullable=True),
        Column(
            "wait_status",
            "int64",
            "id",
            "how it ended, as `waitpid` reports it: 256 times the exit code, or the signal",
            nullable=True,
        ),
        Column(
            "ended_by",
            "category",
            "name",
            "exception that ended the program of a closed capture",
            nullable=True,
        ),
    ),
)

STANDING = TableSpec(
    "standing",
    "one function that the training thread of a rank was in when a step had lasted for long, or when the job ended",
    (
        RANK,
        Column("depth", "int32", "1", "how many functions lie within it, 0 for the innermost"),
        Column("function", "string", "name", "its qualified name"),
        Column("file", "string", "name", "the file that it is defined in"),
        Column("line", "int32", "1", "the line that it was at"),
        Column(
            "goes_on",
            "bool",
            "1",
            "whether the thread went on within it between two looks; else it stood still",
        ),
        Column("moment", "category", "1", "StackMoment: why it was looked at", nullable=True),
        ns_column("time_ns", "when it was looked at, for the second time in a standstill"),
    ),
)

NOTED_COLLECTIVE = TableSpec(
    "noted_collective",
    "one of the last collectives of a rank that the probe did not record, by the recorder of PyTorch itself",
    (
        RANK,
        Column("group_id", "category", "id", "process group"),
        Column(
            "seq",
            "int64",
            "id",
            "position among the collectives of its group, as the backend counts",
        ),
        Column("kind", "category", "1", "CollectiveKind"),
        Column("size_bytes", "int64", "bytes", "message size"),
        Column("dtype", "category", "1", "element type of the message", nullable=True),
        Column(
            "is_open",
            "bool",
            "1",
            "whether it had not ended; true for all of a rank that an exception ended, as it may have ended any of them",
        ),
        ns_column("time_ns", "when it was noted"),
        *(column for column in COLLECTIVE_CALL.columns if column.name in _OF_CALL),
    ),
)
