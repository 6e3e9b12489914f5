"""Kernels that no name betrays: the host said that it called a collective."""

from tests.kineto_files import call, complete, kernel, launched, write

from meshscope.analyze.read import import_trace


def categories(tmp_path, events):
    """Return the category of each kernel by name, and the collectives."""
    trace = import_trace(write(tmp_path / "rank0.json", events, world_size=2))
    names = trace.frame("name").set_index("name_id")["name"]
    kernels = trace.frame("kernel")
    found = dict(zip(names[kernels["name_id"]], kernels["category"].astype(str), strict=True))
    return found, trace.frame("collective")


def test_a_kernel_launched_in_a_noted_collective_communicates(tmp_path):
    """Fails when collectives of a library with kernels of other names count as computation."""
    events = [*launched("gemm", 0, 10, 50, 1), *launched("gemm", 300, 310, 50, 3)]
    events += [complete("user_annotation", "xccl:all_reduce", 100, 40)]
    events += launched("_ZTS11Fused_ringE", 110, 130, 90, 2, stream=9)
    found, collective = categories(tmp_path, events)
    assert found == {"gemm": "compute", "_ZTS11Fused_ringE": "communication"}
    assert collective["kind"].tolist() == ["all_reduce"]


def test_copies_beside_a_known_kernel_stay_computation(tmp_path):
    """Fails when what a gather copies to its outputs is called a second collective."""
    events = [complete("user_annotation", "nccl:all_gather", 100, 60)]
    events += [call("cudaLaunchKernel", 110, 5, 1), kernel("ncclDevKernel_AllGather", 120, 50, 1)]
    events += launched("CatArrayBatchedCopy", 140, 180, 5, 2)
    found, collective = categories(tmp_path, events)
    assert found == {"ncclDevKernel_AllGather": "communication", "CatArrayBatchedCopy": "compute"}
    assert len(collective) == 1


def test_work_beside_a_collective_of_hosts_stays_computation(tmp_path):
    """Fails when the kernel that packs a tensor for gloo is called communication."""
    events = [complete("user_annotation", "gloo:all_reduce", 100, 60)]
    events += launched("pack", 110, 130, 20, 1)
    assert categories(tmp_path, events)[0] == {"pack": "compute"}
