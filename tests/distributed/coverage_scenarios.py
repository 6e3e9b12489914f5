"""One rank that communicates in every way a trainer does, under the probe and Kineto.

Each scenario is one step of the capture, its preparation the step before. What
Kineto counted goes to ``<rank>.json``: by scenario the step, and the number of
calls of each ``c10d`` operator.
"""

import json
import time
from collections import Counter

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from meshscope import probe

WIDTH = 8


def plain(rank, _mesh):
    """Every collective of the Python API that gloo has, blocking and not."""
    world = dist.group.WORLD

    def run():
        x = torch.ones(4)
        pair = torch.ones(8)
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        dist.all_gather([torch.empty(4), torch.empty(4)], x)
        dist.all_gather_into_tensor(pair, x)
        dist.reduce_scatter_tensor(x, pair)
        dist.all_to_all_single(pair, pair.clone())
        dist.gather(x, [torch.empty(4), torch.empty(4)] if rank == 0 else None, dst=0)
        dist.scatter(x, [torch.ones(4), torch.ones(4)] if rank == 0 else None, src=0)
        dist.all_reduce_coalesced([x, pair])
        dist.barrier()
        dist.monitored_barrier(world)

    return run


def messages(rank, _mesh):
    """Blocking, non-blocking, batched and any-source point-to-point."""
    peer = 1 - rank

    def run():
        out, into = torch.ones(4), torch.empty(4)
        first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
        first(out if rank == 0 else into, peer)
        second(into if rank == 0 else out, peer)
        works = [dist.isend(out, peer), dist.irecv(into, peer)]
        for work in works:
            work.wait()
        batch = [dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, peer)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        if rank == 0:
            dist.send(out, peer)
        else:
            dist.recv(into)

    return run


def objects(rank, _mesh):
    """Collectives of Python objects, which are several tensor ones each."""

    def run():
        dist.all_gather_object([None, None], {"rank": rank})
        dist.broadcast_object_list([rank], src=0)
        dist.gather_object(rank, [None, None] if rank == 0 else None, dst=0)

    return run


def functional_collectives(_rank, _mesh):
    """Collectives whose result is a tensor to wait for, as compiled code uses them."""
    group = dist.group.WORLD

    def run():
        x = torch.ones(4)
        functional.wait_tensor(functional.all_reduce(x, "sum", group))
        functional.wait_tensor(functional.all_gather_tensor(x, 0, group))
        functional.wait_tensor(functional.reduce_scatter_tensor(x, "sum", 0, group))
        functional.wait_tensor(functional.all_to_all_single(x, [2, 2], [2, 2], group))
        wait_for_all(functional.all_reduce_coalesced([x, x + 1], "sum", group))
        wait_for_all(functional.all_gather_into_tensor_coalesced([x, x + 1], group))

    return run


def wait_for_all(tensors):
    """Wait for all outputs of an operation, as torch does from 2.15 on, or one after the other."""
    if hasattr(functional, "wait_tensors"):
        functional.wait_tensors(tensors)
    else:
        for tensor in tensors:
            functional.wait_tensor(tensor)


def ddp(_rank, _mesh):
    """Gradient buckets that the C++ reducer sends off."""
    model = DistributedDataParallel(deep_model(), bucket_cap_mb=0.0001)
    return trains(model, model.parameters())


def fsdp2(_rank, mesh):
    """Parameters gathered and gradients scattered per layer."""
    model = deep_model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trains(model, model.parameters())


def tensor_parallel(_rank, mesh):
    """A matrix pair split over the ranks by DTensor."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    return trains(model, model.parameters())


def pipeline(schedule_class, chunks=1):
    """Microbatches through the two ranks under one schedule."""

    def prepare(rank, mesh):
        stages = [
            PipelineStage(
                nn.Linear(WIDTH, WIDTH), rank + 2 * chunk, 2 * chunks, torch.device("cpu"),
                group=mesh.get_group(),
            )
            for chunk in range(chunks)
        ]  # fmt: skip
        schedule = schedule_class(
            stages if chunks > 1 else stages[0], 4, loss_fn=nn.functional.mse_loss
        )
        x = torch.ones(8, WIDTH)

        def run():
            if rank == 0:
                schedule.step(x)
            else:
                schedule.step(target=x)

        run()
        return run

    return prepare


SCENARIOS = {
    "plain": plain,
    "messages": messages,
    "objects": objects,
    "functional": functional_collectives,
    "ddp": ddp,
    "fsdp2": fsdp2,
    "tensor_parallel": tensor_parallel,
    "gpipe": pipeline(ScheduleGPipe),
    "1f1b": pipeline(Schedule1F1B),
    "zero_bubble": pipeline(ScheduleInterleavedZeroBubble, chunks=2),
}


def deep_model():
    """Return a few layers of equal parameters on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))


def trains(model, parameters):
    """Return a training iteration; one runs now, because the first does more."""
    optimizer = torch.optim.SGD(list(parameters), lr=0.01, foreach=False)

    def run():
        optimizer.zero_grad()
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()

    run()
    return run


def kineto_counts(run):
    """Return how often each ``c10d`` operator ran, as Kineto saw it."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    calls = (event.name.removeprefix("c10d::") for event in profiler.events()
             if event.name.startswith("c10d::"))  # fmt: skip
    return Counter(calls)


def main(run_dir, counts_dir, when):
    """Attach before or after ``init_process_group``, run all scenarios, write what Kineto counted."""
    torch.set_num_threads(1)
    if when == "before":
        probe.attach(run_dir)
    dist.init_process_group("gloo")
    if when == "after":
        dist.all_reduce(torch.ones(1))
        probe.attach(run_dir)
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    counts, step = {}, 0
    for name, prepare in SCENARIOS.items():
        run = prepare(rank, mesh)
        probe.step()
        counts[name] = {"step": step + 1, "calls": kineto_counts(run)}
        probe.step()
        step += 2
    probe.detach()
    (counts_dir / f"{rank}.json").write_text(json.dumps(counts))
    # Torch joins gloo's worker with the interpreter lock held, while that worker
    # may need the lock to drop its last operation. Idle, it has none.
    time.sleep(0.5)
    dist.destroy_process_group()
