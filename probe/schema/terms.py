"""The closed vocabularies of the tables.

The order of the members of an enum is part of the ring format (a member is
stored as its position): append, never reorder.
"""

from enum import StrEnum


class Axis(StrEnum):
    """A direction of the mesh of ranks."""

    TP = "tp"
    PP = "pp"
    DP = "dp"
    CP = "cp"
    EP = "ep"
    OTHER = "other"


class SpanKind(StrEnum):
    """What a compute or host interval was spent on."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward_input"
    BACKWARD_WEIGHT = "backward_weight"
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    GRAD_CLIP = "grad_clip"
    DATA_LOAD = "data_load"
    GC = "gc"
    CHECKPOINT = "checkpoint"
    OFFLOAD = "offload"
    HOST_BLOCKED = "host_blocked"
    OTHER = "other"


COMPUTE_KINDS = frozenset(
    {
        SpanKind.FORWARD,
        SpanKind.BACKWARD,
        SpanKind.BACKWARD_INPUT,
        SpanKind.BACKWARD_WEIGHT,
        SpanKind.RECOMPUTE,
        SpanKind.OPTIMIZER,
        SpanKind.GRAD_CLIP,
    }
)
"""Span kinds that are device work of the model; the others are host time."""


class CollectiveKind(StrEnum):
    """An operation in which all ranks of a group take part."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    BARRIER = "barrier"
    OTHER = "other"


SYNCHRONISING = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.BARRIER,
)
"""Kinds that no member leaves before all have come."""


class Direction(StrEnum):
    """Which end of a point-to-point operation a row is."""

    SEND = "send"
    RECV = "recv"


class ScheduleKind(StrEnum):
    """A pipeline schedule."""

    NONE = "none"
    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved-1f1b"
    ZB_H1 = "zb-h1"
    ZB_V = "zb-v"
    DUALPIPE_V = "dualpipe-v"
    OTHER = "other"


class KernelCategory(StrEnum):
    """What a device activity is."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    MEMCPY = "memcpy"
    MEMSET = "memset"
    SYNC = "sync"
    UNKNOWN = "unknown"


class DeviceInterface(StrEnum):
    """Through which interface the host called its device."""

    RUNTIME = "runtime"
    DRIVER = "driver"


class MemoryPhase(StrEnum):
    """The phase border at which an allocator sample was taken."""

    STEP_START = "step_start"
    AFTER_FORWARD = "after_forward"
    AFTER_BACKWARD = "after_backward"
    AFTER_OPTIMIZER = "after_optimizer"
    OTHER = "other"


class DeviceEventKind(StrEnum):
    """A fault that the driver reports of a device."""

    XID = "xid"
    ECC_UNCORRECTED = "ecc_uncorrected"
    LOST = "lost"
    """Calls say that the device is gone from the bus."""
    RESET_REQUIRED = "reset_required"
    """Calls say that nothing goes on before the device is reset."""


class LinkLayer(StrEnum):
    """What a network port speaks."""

    INFINIBAND = "infiniband"
    ETHERNET = "ethernet"


class CaptureLevel(StrEnum):
    """How much a capture saw; each level includes those before it."""

    STEPS = "steps"
    STAGES = "stages"
    COLLECTIVES = "collectives"
    KERNELS = "kernels"


class StepDetail(StrEnum):
    """What a capture holds of one step of a rank; each includes those before it."""

    STEPS = "steps"
    """When the step began and ended; nothing of what happened in it."""
    STAGES = "stages"
    """And its spans. Communication was not recorded, so it hides inside and between them."""
    SUMS = "sums"
    """And what communication took together, without the single operations."""
    FULL = "full"
    """And every operation."""


class StackMoment(StrEnum):
    """When a rank noted where its program stood."""

    STANDSTILL = "standstill"
    """A step had lasted for long."""
    OTHER_DIED = "other_died"
    """Another rank of its host had died."""
    RAISED = "raised"
    """An exception ended the program …"""
    TIMED_OUT = "timed_out"
    """… that tells of a wait that lasted too long …"""
    PEER_LOST = "peer_lost"
    """… or of a peer that was gone."""
    INTERRUPTED = "interrupted"
    """Ctrl-C ended the program."""
    FATAL_SIGNAL = "fatal_signal"
    """A signal such as SIGSEGV or SIGABRT ended it."""


class TimeSource(StrEnum):
    """Where the times of a communication row come from."""

    HOST_BLOCKING = "host_blocking"
    """The host saw the end, because it waited for it."""
    HOST_ISSUE = "host_issue"
    """The host saw the issue only; the end is unknown."""
    DEVICE = "device"
    """Start and end of the device kernel."""
    DEVICE_BLOCKING = "device_blocking"
    """Events on the stream that computes: when it got to the issue, and from when to when it waited."""
    IMPORTED = "imported"
    """Another tool's interval, taken as it is."""


WAIT_SOURCES = (
    TimeSource.HOST_BLOCKING.value,
    TimeSource.HOST_ISSUE.value,
    TimeSource.DEVICE_BLOCKING.value,
)
"""Where a rank stands still for an operation while it waits for it, not from its start to its end."""


class FindingKind(StrEnum):
    """What a finding says."""

    STRAGGLER_RANK = "straggler_rank"
    STAGE_IMBALANCE = "stage_imbalance"
    EMBEDDING_IMBALANCE = "embedding_imbalance"
    SEQUENCE_IMBALANCE = "sequence_imbalance"
    EXPERT_IMBALANCE = "expert_imbalance"
    SLOW_LINK = "slow_link"
    SLOW_WIRE = "slow_wire"
    EXPOSED_COMMUNICATION = "exposed_communication"
    PIPELINE_BUBBLE = "pipeline_bubble"
    MEMORY_IMBALANCE = "memory_imbalance"
    MEMORY_HEADROOM = "memory_headroom"
    HOST_STALL = "host_stall"
    GC_PAUSE = "gc_pause"
    DATA_STALL = "data_stall"
    CHECKPOINT_STALL = "checkpoint_stall"
    LAUNCH_BOUND = "launch_bound"
    RECOMPUTE = "recompute"
    CLOCK_THROTTLE = "clock_throttle"
    DEVICE_ERROR = "device_error"
    HANG = "hang"
    CRASH = "crash"
    JOB_ENDED = "job_ended"
    MISMATCH = "mismatch"
    MEMORY_COPY = "memory_copy"
    TOPOLOGY_VIOLATION = "topology_violation"
    CLOCK_SKEW = "clock_skew"
    MISSING_DATA = "missing_data"
    JITTER = "jitter"
    COMMUNICATION_VOLUME = "communication_volume"
    NETWORK_PORT = "network_port"
    DEVICE_IMBALANCE = "device_imbalance"


class Severity(StrEnum):
    """How much a finding matters, by the share of step time that fixing it returns."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"
