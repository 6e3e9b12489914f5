"""A program without a backward pass has no gradients: what its ranks reduce are activations."""

import pytest
from tests.kineto_files import call, kernel, operator, write

from meshscope.analyze.align.topology.group_traffic import traffic_axes
from meshscope.analyze.read import import_trace


def axes(tmp_path, *extra):
    """Return the axes of a job of two ranks that multiply and reduce, with more events on each."""
    for rank in range(2):
        events = []
        for at in range(4):
            t = at * 200
            events += [operator("aten::mm", t, 20), call("cudaLaunchKernel", t + 5, 5, 2 * at + 1)]
            events += [kernel("gemm", t + 30, 50, 2 * at + 1)]
            events += [operator("vllm::all_reduce", t + 25, 20)]
            events += [call("cudaLaunchKernelExC", t + 30, 5, 2 * at + 2)]
            events += [kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", t + 80, 20, 2 * at + 2)]
        write(tmp_path / f"rank{rank}.json", [*events, *extra], rank=rank, world_size=2)
    return {found.axis for found in traffic_axes(import_trace(tmp_path)).values()}


def test_an_inference_engine_reduces_activations(tmp_path):
    """Fails when a server without a backward pass is told to overlap its reduction of gradients with one."""
    assert axes(tmp_path) == {"tp"}


@pytest.mark.parametrize(
    "name", ["autograd::engine::evaluate_function: MmBackward0", "CompiledFunctionBackward"]
)
def test_a_training_job_reduces_gradients(tmp_path, name):
    """Fails when data parallelism is called tensor parallelism."""
    assert axes(tmp_path, operator(name, 900, 50)) == {"dp"}


def test_what_graphs_hold_may_be_a_backward_pass(tmp_path):
    """Fails when a training job that replays graphs is called an inference engine."""
    graph = [call("cudaGraphLaunch", 1_000, 5, 99)]
    graph += [kernel("gemm", 1_010 + at * 20, 20, 99) for at in range(9)]
    assert axes(tmp_path, *graph) == set()
