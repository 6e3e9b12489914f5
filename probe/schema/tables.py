"""The tables of a capture: the contract between probe, importers and analyses.

Times are integer nanoseconds of the capturing host's monotonic clock unless the
``clock_sync`` table maps it to another; sizes are bytes. ``-1`` marks an
identifier that does not apply; null marks a value that is not known.
``docs/tables.md`` is generated from this file.
"""

from .columns import RANK, Column, TableSpec, ns_column
from .host_tables import HOST_TABLES
from .imported_tables import (
    ALLOCATION_FAILURE,
    COLLECTIVE_CALL,
    PYTHON_CALL,
    TRANSFER_CALL,
)
from .standstill_tables import NOTED_COLLECTIVE, PROGRESS, STANDING
from .summary_tables import ATTEMPT, CALL_PLACE, COMMUNICATION_SUM, RECORDING

FORMAT_VERSION = 4
"""Version of the run directory and of these tables."""
READABLE_VERSIONS = (3, FORMAT_VERSION)
"""What a reader takes; it refuses any other."""


def _id(name: str, meaning: str, dtype: str = "int32") -> Column:
    return Column(name, dtype, "id", meaning)


def _bytes(name: str, meaning: str, *, nullable: bool = True) -> Column:
    return Column(name, "int64", "bytes", meaning, nullable)


_STEP = Column("step", "int64", "id", "optimizer step, -1 before the first or when unknown")

_POSITION = Column(
    "position", "int32", "id", "place among all events of the rank's source", nullable=True
)

_COMMUNICATION_TIMES = (
    ns_column("issue_ns", "the host asked for the operation"),
    ns_column(
        "start_ns",
        "the operation began on this member: issue on a host clock, kernel start on a device",
    ),
    ns_column("end_ns", "the operation was complete on this member by then", nullable=True),
    ns_column("wait_start_ns", "the host began to wait for it", nullable=True),
    ns_column("wait_end_ns", "the host stopped waiting", nullable=True),
    ns_column(
        "device_dur_ns", "how long the device took for it, where that was timed", nullable=True
    ),
    Column("source", "category", "1", "where the times come from (TimeSource)"),
    Column("event_id", "int64", "id", "unique within the rank; the last row of an id wins"),
)

RUN = TableSpec(
    "run",
    "the job",
    (
        Column("run_id", "string", "id", "name of the run directory"),
        Column(
            "world_size", "int32", "1", "ranks of the job, captured or not; 0 if nothing says it"
        ),
        Column("tp", "int32", "1", "tensor-parallel size", nullable=True),
        Column("pp", "int32", "1", "pipeline-parallel size", nullable=True),
        Column("dp", "int32", "1", "data-parallel size", nullable=True),
        Column("cp", "int32", "1", "context-parallel size", nullable=True),
        Column("ep", "int32", "1", "expert-parallel size", nullable=True),
        Column("vpp", "int32", "1", "chunks per pipeline rank", nullable=True),
        Column(
            "order", "string", "1", "axes from slowest to fastest over the ranks", nullable=True
        ),
        Column("num_layers", "int32", "1", "transformer layers", nullable=True),
        Column("hidden_size", "int32", "1", "model width", nullable=True),
        Column("ffn_size", "int32", "1", "feed-forward width", nullable=True),
        Column("num_heads", "int32", "1", "attention heads", nullable=True),
        Column("seq_len", "int32", "tokens", "tokens of one sequence", nullable=True),
        Column("vocab_size", "int32", "1", "rows of the embedding", nullable=True),
        Column("parameters", "int64", "1", "model parameters over all ranks", nullable=True),
        Column(
            "model",
            "string",
            "1",
            "all that is known of the model: fields of ModelDescription as JSON",
            nullable=True,
        ),
        Column("schedule", "category", "1", "pipeline schedule (ScheduleKind)", nullable=True),
        Column(
            "microbatches", "int32", "1", "microbatches of a step on one replica", nullable=True
        ),
        Column(
            "tokens_per_step",
            "int64",
            "tokens",
            "tokens of a step over all replicas",
            nullable=True,
        ),
        Column(
            "flops_per_token",
            "float64",
            "flop/token",
            "FLOPs of training on one token, as stated",
            nullable=True,
        ),
        Column(
            "peak_flops",
            "float64",
            "flop/s",
            "peak of one device at the training dtype",
            nullable=True,
        ),
        Column("peak_source", "string", "1", "where that peak comes from", nullable=True),
        Column("device_name", "string", "1", "device model of the ranks", nullable=True),
        Column(
            "capture_level", "category", "1", "how much was captured (CaptureLevel)", nullable=True
        ),
    ),
)

GROUP = TableSpec(
    "group",
    "one process group",
    (
        Column("group_id", "category", "id", "name of the group, the same on all its members"),
        Column("axis", "category", "1", "mesh axis it lies along (Axis)"),
        Column("ranks", "list<int32>", "id", "members as global ranks, in group order"),
        Column("description", "string", "1", "what the framework calls it", nullable=True),
        Column("evidence", "string", "message", "why the axis was chosen", nullable=True),
    ),
)

STEP = TableSpec(
    "step",
    "one optimizer step of a rank",
    (
        RANK,
        _STEP,
        ns_column("start_ns", "end of the previous step"),
        ns_column("dur_ns", "length of the step window"),
        Column("tokens", "int64", "tokens", "tokens this replica trained on", nullable=True),
        Column("detail", "category", "1", "what is held of it (StepDetail)", nullable=True),
    ),
)

SPAN = TableSpec(
    "span",
    "one compute or host interval",
    (
        RANK,
        _STEP,
        Column("kind", "category", "1", "what the time was spent on (SpanKind)"),
        _id("stage", "pipeline stage in model order, -1 if none"),
        _id("chunk", "virtual stage on this rank, -1 if none"),
        _id("microbatch", "microbatch, -1 if none"),
        ns_column("start_ns", "start"),
        ns_column("dur_ns", "wall time"),
        ns_column("cpu_ns", "CPU time of the thread in the span", nullable=True),
        ns_column("device_start_ns", "the device began what the span launched", nullable=True),
        ns_column("device_dur_ns", "how long the device took for it", nullable=True),
    ),
)

MICROBATCH = TableSpec(
    "microbatch",
    "the sequences of one microbatch of a step, as the training code of a rank states them",
    (
        RANK,
        _STEP,
        _id("microbatch", "which one, as in spans"),
        Column("tokens", "int64", "tokens", "lengths of its sequences, added up"),
        Column("sum_sq", "int64", "tokens^2", "squares of these lengths, added up"),
    ),
)

COLLECTIVE = TableSpec(
    "collective",
    "one member of one collective",
    (
        RANK,
        _STEP,
        Column("group_id", "category", "id", "process group"),
        Column("axis", "category", "1", "mesh axis of the group (Axis)"),
        Column("kind", "category", "1", "operation (CollectiveKind)"),
        Column(
            "seq",
            "int64",
            "id",
            "position among the collectives of its group, equal on all members",
        ),
        _bytes(
            "size_bytes", "message size: output for all-gather, input otherwise", nullable=False
        ),
        Column("dtype", "category", "1", "element type", nullable=True),
        Column(
            "root",
            "category",
            "id",
            "global rank that the member named as the root; null where there is none, or it is unknown",
            nullable=True,
        ),
        *_COMMUNICATION_TIMES,
    ),
)

P2P = TableSpec(
    "p2p",
    "one end of one send or receive",
    (
        RANK,
        _STEP,
        Column("group_id", "category", "id", "process group"),
        Column("axis", "category", "1", "mesh axis of the group (Axis)"),
        _id("peer", "global rank of the other end, -1 if any"),
        Column("direction", "category", "1", "which end this is (Direction)"),
        _id("microbatch", "microbatch carried, -1 if unknown"),
        _id("chunk", "virtual stage on this rank, -1 if unknown"),
        Column(
            "seq",
            "int64",
            "id",
            "position among the sends (or receives) from one rank to the other in the group",
        ),
        _bytes("size_bytes", "message size", nullable=False),
        Column("dtype", "category", "1", "element type", nullable=True),
        *_COMMUNICATION_TIMES,
    ),
)

NAME = TableSpec(
    "name",
    "one interned string of a rank",
    (
        RANK,
        _id("name_id", "key in the other tables of this rank"),
        Column("name", "string", "1", "the text"),
    ),
)

KERNEL = TableSpec(
    "kernel",
    "one device activity",
    (
        RANK,
        _STEP,
        _id("device", "device ordinal"),
        Column("stream", "int64", "id", "stream or queue"),
        _id("name_id", "name of the kernel"),
        Column("category", "category", "1", "what it is (KernelCategory)"),
        ns_column("start_ns", "start"),
        ns_column("dur_ns", "duration"),
        Column("correlation", "int64", "id", "links it to its launch, -1 if none"),
        Column("op_id", "int64", "id", "row of the operator that launched it, -1 if unlinked"),
        Column("launch_ns", "int64", "ns", "the host launched it", nullable=True),
        _bytes("size_bytes", "bytes that a copy or a memory set moved"),
        Column("rate_bytes_per_s", "float64", "bytes/s", "its bandwidth as stated", nullable=True),
        Column("wait_stream", "int64", "id", "stream that a sync row waited for", nullable=True),
        Column(
            "wait_correlation",
            "int64",
            "id",
            "correlation of the call that recorded the event which a sync row waited for",
            nullable=True,
        ),
        _POSITION,
    ),
)

RUNTIME_CALL = TableSpec(
    "runtime_call",
    "one call of the host into the runtime or driver of its device",
    (
        RANK,
        _STEP,
        Column("interface", "category", "1", "what was called (DeviceInterface)"),
        _id("name_id", "name of the call"),
        Column("thread", "int64", "id", "thread that called"),
        ns_column("start_ns", "start"),
        ns_column("dur_ns", "duration"),
        Column("correlation", "int64", "id", "links it to the device activity, -1 if none"),
        _POSITION,
    ),
)

ANNOTATION = TableSpec(
    "annotation",
    "one interval that the program or its framework has named",
    (
        RANK,
        _STEP,
        _id("device", "device ordinal of one on a device, -1 on the host"),
        Column("thread", "int64", "id", "thread it ran on; the stream of one on a device"),
        _id("name_id", "name of the annotation"),
        ns_column("start_ns", "start"),
        ns_column("dur_ns", "duration"),
        _POSITION,
    ),
)

OP = TableSpec(
    "op",
    "one CPU operator",
    (
        RANK,
        _STEP,
        Column("op_id", "int64", "id", "unique within the rank"),
        _id("name_id", "operator name"),
        Column("thread", "int64", "id", "thread it ran on"),
        ns_column("start_ns", "start"),
        ns_column("dur_ns", "duration"),
        Column(
            "flops",
            "float64",
            "flop",
            "arithmetic of a matrix product or attention, from its shapes",
            nullable=True,
        ),
        Column(
            "shapes",
            "string",
            "1",
            "element types and sizes of its input tensors, if recorded",
            nullable=True,
        ),
        _POSITION,
    ),
)

MEMORY = TableSpec(
    "memory",
    "the allocator state at one phase border",
    (
        RANK,
        _STEP,
        Column("phase", "category", "1", "phase border (MemoryPhase)"),
        _id("stage", "pipeline stage, -1 if none"),
        ns_column("time_ns", "when it was read"),
        _bytes("allocated_bytes", "live in the device allocator"),
        _bytes("reserved_bytes", "held by the device allocator"),
        _bytes("peak_bytes", "highest allocated since the step began"),
        _bytes("rss_bytes", "resident set of the process"),
        _bytes("capacity_bytes", "what the device (or, on CPU, the host per rank) offers"),
        _bytes("parameters_bytes", "weights"),
        _bytes("gradients_bytes", "gradients"),
        _bytes("optimizer_bytes", "optimizer state"),
        _bytes("activations_bytes", "activations held for the backward pass"),
        _bytes("other_bytes", "allocated and none of the above"),
    ),
)

CLOCK_SYNC = TableSpec(
    "clock_sync",
    "one offset estimate between hosts",
    (
        Column("host", "category", "id", "machine whose clock is described"),
        Column("reference_host", "category", "id", "machine it is compared with"),
        ns_column("time_ns", "when the estimate holds"),
        Column("offset_ns", "float64", "ns", "add to this host's time to get the reference's"),
        Column("drift_ppm", "float64", "1e-6", "growth of the offset", nullable=True),
        Column("error_ns", "float64", "ns", "bound of the estimate"),
    ),
)

TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        RUN,
        GROUP,
        STEP,
        SPAN,
        MICROBATCH,
        COLLECTIVE,
        COLLECTIVE_CALL,
        P2P,
        TRANSFER_CALL,
        COMMUNICATION_SUM,
        RECORDING,
        ATTEMPT,
        PROGRESS,
        STANDING,
        NOTED_COLLECTIVE,
        CALL_PLACE,
        NAME,
        KERNEL,
        RUNTIME_CALL,
        OP,
        ANNOTATION,
        PYTHON_CALL,
        MEMORY,
        ALLOCATION_FAILURE,
        *HOST_TABLES.values(),
        CLOCK_SYNC,
    )
}
"""Every table by name, in the order of the reference."""
