"""The private torch names that the trainer leans on."""

from __future__ import annotations

import inspect

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from meshscope.analyze.formulas.schedules import PassKind
from meshscope.reference_trainer import compat


def test_the_private_names_are_there_and_take_our_arguments():
    """Fails if a torch version moves or changes what the pipeline is built on."""
    for kind in PassKind:
        action = compat.Action(1, compat.PASS_TYPES[kind], 2)
        assert (action.stage_index, action.microbatch_index) == (1, 2)
        assert str(action) == f"1{kind}2"
    prepare = inspect.signature(compat.ScheduleRuntime._prepare_schedule_with_comms)
    assert list(prepare.parameters)[:2] == ["self", "actions"]
    step = inspect.signature(compat.ScheduleRuntime.step)
    assert {"target", "losses", "return_outputs"} <= set(step.parameters)
    backward = inspect.signature(PipelineStage.backward_maybe_with_nosync)
    assert list(backward.parameters)[1:] == ["backward_type", "bwd_kwargs", "last_backward"]
    build = inspect.signature(compat.ScheduleRuntime.__mro__[1].__init__)
    assert {"stages", "n_microbatches", "loss_fn", "scale_grads"} <= set(build.parameters)


def test_stages_of_a_simulation_ask_nobody_and_receive_where_they_say():
    """Fails if torch asks neighbours in another way, or keeps its receive buffers elsewhere."""
    for name in ("_warmup_forward_vote", "_warmup_backward_result"):
        assert callable(getattr(PipelineStage, name))
    for name, first in (
        ("forward_one_chunk", "fwd_chunk_id"),
        ("backward_one_chunk", "bwd_chunk_id"),
        ("backward_weight_one_chunk", "bwd_chunk_id"),
    ):
        assert list(inspect.signature(getattr(PipelineStage, name)).parameters)[1] == first
    backward = inspect.signature(PipelineStage.backward_one_chunk)
    assert backward.parameters["full_backward"].default is True


def test_the_renamed_collectives_are_those_of_this_torch(group_of_two):
    """Fails if a collective is gone, or warns under a name that torch gives up."""
    whole, part = torch.zeros(4), torch.ones(2)
    for call, tensors in (
        (compat.all_gather_single, (whole, part)),
        (compat.reduce_scatter_single, (part, whole)),
    ):
        call(*tensors, group=group_of_two.handle, async_op=True).wait()


def test_a_replaced_operator_can_still_be_called():
    """Fails if a slow link could no longer do what the operator does that it replaces."""
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    try:
        group = dist.group.WORLD
        host, device = (group._get_backend(torch.device(kind)) for kind in ("cpu", "cuda"))
        assert host.name() == device.name() == "gloo"
        sent, received = torch.ones(2), torch.zeros(2)
        arguments = received, sent, group.boxed(), True, 1000
        _, work = compat.replaced_operator("_allgather_base_")(*arguments)
        assert compat.unboxed_work(work).wait()
        assert torch.equal(received, sent)
    finally:
        dist.destroy_process_group()


class _Notes(torch.autograd.Function):
    """Multiplies, and notes which gradients its backward is asked for."""

    @staticmethod
    def forward(ctx, left, right, notes):
        ctx.save_for_backward(left, right)
        ctx.notes = notes
        return left * right

    @staticmethod
    def backward(ctx, grad):
        left, right = ctx.saved_tensors
        ctx.notes.append([compat.is_wanted(node) for node, _ in ctx.next_functions[:2]])
        return grad * right, grad * left, None


def test_a_custom_backward_learns_which_gradients_are_wanted():
    """Fails if torch stops telling, so that split backwards do their work twice or not at all."""
    notes = []
    left, right = (torch.ones(2, requires_grad=True) for _ in range(2))
    product = _Notes.apply(left * 2, right, notes).sum()
    torch.autograd.grad(product, left, retain_graph=True)
    torch.autograd.grad(product, right, retain_graph=True)
    product.backward()
    _Notes.apply(torch.ones(2), right, notes).sum().backward()
    assert notes == [[True, False], [False, True], [True, True], [False, True]]


def test_what_data_parallelism_leans_on_is_there():
    """Fails if torch moves the reduction's place in the order, FSDP2's seams or its batched maths."""
    assert str(compat.Action(1, compat.REDUCE_GRAD, None)) == "1REDUCE_GRAD"
    register = inspect.signature(compat.ScheduleRuntime.register_custom_function)
    assert list(register.parameters) == ["self", "computation_type", "custom_function"]
    gather, scatter = compat.AllGather.__call__, compat.ReduceScatter.__call__
    seam = ["self", "output_tensor", "input_tensor", "group"]
    assert list(inspect.signature(gather).parameters) == [*seam, "async_op"]
    assert list(inspect.signature(scatter).parameters) == [*seam, "op", "async_op"]
    tensors = [torch.tensor([3.0, 4.0]), torch.tensor([2.0])]
    assert [norm.item() for norm in compat.foreach_norm(tensors)] == [5.0, 2.0]
    compat.foreach_scale(tensors, torch.tensor(2.0))
    compat.foreach_scale(tensors, [1.0, 0.5])
    assert [tensor.tolist() for tensor in tensors] == [[6.0, 8.0], [2.0]]
