"""What a device activity or a collective is, from the names that profilers give it.

Metadata decides first; these patterns are the second choice. Add a library by
adding its pattern here.
"""

from __future__ import annotations

import re

from meshscope.probe.schema.terms import CollectiveKind, KernelCategory

CATEGORY_OF_EVENT = {
    "kernel": KernelCategory.COMPUTE,
    "gpu_memcpy": KernelCategory.MEMCPY,
    "memcpy": KernelCategory.MEMCPY,
    "gpu_memset": KernelCategory.MEMSET,
    "memset": KernelCategory.MEMSET,
    "cuda_sync": KernelCategory.SYNC,
    "mtia_ccp_events": KernelCategory.COMPUTE,
    "hpu_op": KernelCategory.COMPUTE,
    "gpu_op": KernelCategory.COMPUTE,
    "collective_comm": KernelCategory.COMMUNICATION,
    "ascend_kernel": KernelCategory.COMPUTE,
    "ascend_memcpy": KernelCategory.MEMCPY,
    "ascend_sync": KernelCategory.SYNC,
    "ascend_communication": KernelCategory.COMMUNICATION,
}
"""Trace category (lower case) of each device activity; a kernel may turn out to communicate."""

ANNOTATION_NAME = re.compile(
    r"ProfilerStep#|enumerate\(|Optimizer\.\w+#|(?:Distributed|FullySharded)DataParallel\.|PyTorch Profiler"
    r"|(?:nccl|rccl|xccl|hccl|ucc|gloo|mpi):|#+ "
)
"""Names that frameworks give to annotations: old profilers write these as operators."""
OPERATOR_NAME = re.compile(r"::|Backward\d*$|^\w+(?:Function|Fn)$")
"""Names of operators, and of nodes of the autograd graph."""

_COMMUNICATION = re.compile(
    r"nccl|rccl|hccl|hcom_|mccl|xccl|oneccl|msccl|(^|[^a-z])u?ccl(::|\d)"
    r"|cross_device_reduce|(?:one|two)_?shot_?all_?reduce|vllm_all_reduce"
    r"|deep_?ep|hybrid_?ep|nvshmem|rocshmem|mooncake|(^|[^a-z])mori(::|\d)"
    r"|all_?(?:to|2)_?all|(?-i:(^|[a-z\d])A2A[A-Z])"
    r"|userbuffers"
    r"|(^|[^a-z])uc[pt]_",
    re.IGNORECASE,
)
"""Libraries that move data between devices: collective libraries, custom all-reduce of
inference engines, expert dispatch, shared memory across devices, overlap buffers, UCX."""
_FUSED = re.compile(
    r"multimem_|symm_?mem|(?<!warp)(?<!warp_)(?<!block)(?<!block_)all_?(?:reduce|gather)"
    r"|reduce_?scatter|flux.*agkernel",
    re.IGNORECASE,
)
"""Kernels that read other devices' memory themselves: communication fused with arithmetic. Threads
of one warp or block reduce among themselves."""
_COMMANDS = (
    (re.compile(r"zeCommandListAppend(?:Memory|Image)Copy"), KernelCategory.MEMCPY),
    (re.compile(r"zeCommandListAppendMemoryFill"), KernelCategory.MEMSET),
    (
        re.compile(r"zeCommandListAppend(?:Barrier|Memory\w*Barrier|Wait|Signal|Event)"),
        KernelCategory.SYNC,
    ),
)
"""Commands of Level Zero, which unitrace writes beside kernels (category ``gpu_op``)."""
_GENERATED = re.compile(r"triton_[a-z]{2,9}_fused_")
"""Kernels of TorchInductor are named after the operators whose results they compute with."""
_KINDS = (
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("allreducebarrier", CollectiveKind.BARRIER),
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("crossdevicereduce", CollectiveKind.ALL_REDUCE),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("all2all", CollectiveKind.ALL_TO_ALL),
    ("broadcast", CollectiveKind.BROADCAST),
    ("barrier", CollectiveKind.BARRIER),
    ("scatter", CollectiveKind.SCATTER),
    ("gather", CollectiveKind.GATHER),
    ("reduce", CollectiveKind.REDUCE),
)
"""First match wins, so a longer word stands before the one it contains."""
_SCALAR_TYPES = {
    "float": "float32", "double": "float64", "half": "float16",
    "byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64",
    "complexhalf": "complex32", "complexfloat": "complex64", "complexdouble": "complex128",
}  # fmt: skip
"""Names of C++ that differ from those of ``torch.dtype`` in more than capitals (``c10/core/ScalarType.h``)."""
_ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1,
    "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2,
    "float32": 4, "int32": 4, "uint32": 4, "complex32": 4,
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8,
    "complex128": 16,
}  # fmt: skip


def kernel_category(kernel_name: str) -> KernelCategory:
    """Return whether a kernel communicates, by its name.

    ``UNKNOWN`` is a kernel that reads other devices' memory and computes in one, so
    that its time is neither of the two alone.
    """
    for pattern, category in _COMMANDS:
        if pattern.search(kernel_name):
            return category
    if _GENERATED.match(kernel_name):
        return KernelCategory.COMPUTE
    if _COMMUNICATION.search(kernel_name):
        return KernelCategory.COMMUNICATION
    if _FUSED.search(kernel_name):
        return KernelCategory.UNKNOWN
    return KernelCategory.COMPUTE


def collective_kind(name: str) -> CollectiveKind:
    """Return the operation that a framework or kernel name says; ``OTHER`` if it says none.

    >>> collective_kind("_reduce_scatter_base").value
    'reduce_scatter'
    >>> collective_kind("ncclDevKernel_Generic(ncclDevComm*)").value
    'other'
    """
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((kind for word, kind in _KINDS if word in letters), CollectiveKind.OTHER)


def dtype_name(scalar_type: str) -> str:
    """Return an element type as ``torch.dtype`` names it and the probe records it.

    PyTorch's recorder and profiler write the names of C++.

    >>> [dtype_name(name) for name in ("Float", "c10::BFloat16", "Long", "Float8_e4m3fn")]
    ['float32', 'bfloat16', 'int64', 'float8_e4m3fn']
    """
    name = scalar_type.removeprefix("torch.").removeprefix("c10::").lower()
    return _SCALAR_TYPES.get(name, name)


def item_bytes(scalar_type: str) -> int:
    """Return the size of one element of a torch scalar type; 0 where it is not known."""
    name = dtype_name(scalar_type)
    return 1 if name.startswith("float8") else _ITEM_BYTES.get(name, 0)
