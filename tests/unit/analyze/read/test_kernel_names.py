"""What kernels are, by the names that their libraries give them."""

import pytest

from meshscope.analyze.read.kernel_names import kernel_category


@pytest.mark.parametrize(
    "name",
    [
        "ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymkDevWorkArgs4K)",
        "_ZTSZZN3ccl2v113sycl_allreduceEvENKUlRN4sycl3_V17handlerEE_clES4_EUlvE_",
        "void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel(int)",
        "void tensorrt_llm::kernels::mnnvl_throughput::moeA2ADispatchKernel<int>(int)",
        "void mooncake::dispatch<false, 16>(int)",
        "void uccl::ep::dispatch<4>(int)",
        "_ZN4mori3moe24EpDispatchIntraNodeKernelEv",
        "void trtllm_mnnvl_allreduce::twoshot_allreduce_kernel<8>(float*)",
        "one_shot_all_reduce_kernel",
    ],
)
def test_libraries_that_move_data_between_devices(name):
    """Fails when the time of an expert dispatch, or of oneCCL, counts as computation."""
    assert kernel_category(name) == "communication"


@pytest.mark.parametrize(
    "name",
    [
        "void cutlass::device_kernel<bytedance::flux::GemmV3ReduceScatter_Kernel>(Params)",
        "void aiter::allgather_lastdim_kernel(int)",
        "_allgather_gemm_kernel",
    ],
)
def test_kernels_that_compute_and_communicate_are_neither(name):
    """Fails when a product fused with its all-gather counts as computation alone."""
    assert kernel_category(name) == "unknown"


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused_add_all_reduce_wait_tensor_3",
        "triton_red_fused_all_to_all_single_2",
        "void blockAllReduceSoftmax<float>(int)",
        "softmax_warp_all_reduce",
        "void at::native::_scatter_gather_elementwise_kernel<128, 8>",
    ],
)
def test_computation_that_is_named_after_communication(name):
    """Fails when what a compiler fused with the result of a collective counts as that collective."""
    assert kernel_category(name) == "compute"


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("zeCommandListAppendMemoryCopy(M2D)[4194304 bytes]", "memcpy"),
        ("zeCommandListAppendMemoryFill[64 bytes]", "memset"),
        ("zeCommandListAppendBarrier", "sync"),
        ("gemm_kernel[SIMD32 {512; 1; 1} {256; 1; 1}]", "compute"),
    ],
)
def test_commands_of_level_zero(name, category):
    """Fails when unitrace's copies, and its waits, count as computation."""
    assert kernel_category(name) == category
