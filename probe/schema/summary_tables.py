"""The tables of what a rank summed up: its communication, and its own recording."""

from .columns import RANK, Column, TableSpec, ns_column

COMMUNICATION_SUM = TableSpec(
    "communication_sum",
    "what like operations of one step of a rank took together, where only sums were kept",
    (
        RANK,
        Column("step", "int64", "id", "optimizer step"),
        Column("group_id", "category", "id", "process group"),
        Column("axis", "category", "1", "mesh axis of the group (Axis)"),
        Column("operation", "category", "1", "CollectiveKind, or Direction of a message"),
        Column(
            "peer",
            "int32",
            "id",
            "global rank of the other end of messages, -1 for collectives or if any",
        ),
        Column(
            "size_log2", "int16", "1", "messages from 2 to this power in bytes to below its double"
        ),
        Column(
            "within",
            "category",
            "1",
            "compute span in which the host waited (SpanKind), null if in none",
            nullable=True,
        ),
        Column("count", "int32", "1", "operations"),
        Column("ended", "int32", "1", "those whose end was seen"),
        Column("waited", "int32", "1", "those that the host was seen to wait for"),
        Column("size_bytes", "int64", "bytes", "messages together"),
        ns_column("dur_ns", "issue to end, summed over those that ended", nullable=True),
        ns_column("min_dur_ns", "the shortest of them", nullable=True),
        ns_column("max_dur_ns", "the longest of them", nullable=True),
        ns_column("wait_ns", "host waits, summed", nullable=True),
        ns_column("min_wait_ns", "the shortest wait", nullable=True),
        ns_column("max_wait_ns", "the longest wait", nullable=True),
    ),
)

CALL_PLACE = TableSpec(
    "call_place",
    "where a rank issued a collective or a message of one kind, element type and size for the first time",
    (
        RANK,
        Column("group_id", "category", "id", "process group"),
        Column("kind", "category", "1", "CollectiveKind, or Direction of a message"),
        Column(
            "peer",
            "int32",
            "id",
            "global rank of the other end of a message, -1 for collectives or if any",
        ),
        Column("dtype", "category", "1", "element type, empty if there is no tensor"),
        Column("size_bytes", "int64", "bytes", "message size"),
        Column("function", "string", "name", "qualified name of the function of the program"),
        Column("file", "string", "name", "the file that it is defined in"),
        Column("line", "int32", "1", "the line that it was at"),
    ),
)

RECORDING = TableSpec(
    "recording",
    "one stretch of steps in which a rank recorded at one level",
    (
        RANK,
        Column("step", "int64", "id", "first step of the stretch"),
        Column("level", "category", "1", "what the probe recorded (CaptureLevel)"),
        Column("reason", "string", "message", "why the level was chosen", nullable=True),
        Column(
            "one_in",
            "int64",
            "1",
            "of so many windows of steps (of 25, before step 80 of 5) one was recorded at that level, "
            "of the others the length of steps alone; null: all",
            nullable=True,
        ),
        ns_column("start_ns", "when the stretch began", nullable=True),
        Column("steps", "int64", "1", "steps whose cost was measured"),
        ns_column("dur_ns", "how long these took"),
        ns_column("cost_ns", "what the hooks took of that, by their own measure", nullable=True),
        ns_column(
            "queued_ns",
            "how long the thread that trains was ready meanwhile and waited for a processor, by the "
            "kernel's account",
            nullable=True,
        ),
    ),
)

ATTEMPT = TableSpec(
    "attempt",
    "one start of the job; a launcher that restarts it makes several in one run",
    (
        Column("attempt", "int32", "id", "number of the start, from 1"),
        Column("first_step", "int64", "id", "its first step"),
        Column("last_step", "int64", "id", "its last step, null if none ended", nullable=True),
        Column(
            "training_step",
            "int64",
            "id",
            "what the training calls the first step, null if it did not say",
            nullable=True,
        ),
        ns_column("start_unix_ns", "when its first rank began to record, time of day"),
        ns_column("end_unix_ns", "when its last rank ended or made its last record, time of day"),
        Column("ranks", "int32", "1", "ranks that recorded"),
        Column(
            "killed_ranks", "int32", "1", "those of them without a mark that they ended in order"
        ),
        Column(
            "ended_rank",
            "int32",
            "id",
            "rank whose process ended first, not in order and not by SIGTERM, which launchers end the "
            "others by; null if not known",
            nullable=True,
        ),
        Column(
            "wait_status",
            "int64",
            "id",
            "how that process ended, as `waitpid` reports it: 256 times the exit code, or the signal",
            nullable=True,
        ),
        Column("world_size", "int32", "1", "ranks of the job, null if none said it", nullable=True),
        Column(
            "hosts",
            "string",
            "id",
            "its machines as they name themselves, in order of their lowest rank, with commas",
            nullable=True,
        ),
    ),
)
