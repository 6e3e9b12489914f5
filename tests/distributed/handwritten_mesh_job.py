"""A trainer as users write them: three axes by hand, groups without names, no framework.

Tensor-parallel MLPs, a 1F1B pipeline that sends on the default group, gradients that are
reduced one by one after the backward, a gradient norm over all ranks.
"""

import torch
import torch.distributed as dist
from torch import nn

from meshscope import probe

MICROBATCHES = 4
SHAPE = (8, 32, 64)


class _Copy(torch.autograd.Function):
    """Identity whose gradient is summed over a group."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    """Sum over a group whose gradient is the identity."""

    @staticmethod
    def forward(_, x, group):
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(_, grad):
        return grad, None


class Block(nn.Module):
    """An MLP whose inner features are split over a tensor-parallel group."""

    def __init__(self, size, group):
        super().__init__()
        inner = 4 * size // group.size()
        self.up, self.down = nn.Linear(size, inner), nn.Linear(inner, size, bias=False)
        self.group = group

    def forward(self, x):
        """Two matrix products, one sum."""
        y = self.up(_Copy.apply(x, self.group)).relu()
        return x + _Sum.apply(self.down(y), self.group)


class Stage:
    """One pipeline stage and its two neighbours."""

    def __init__(self, model, line):
        at = line.index(dist.get_rank())
        self.model, self.ahead = model, len(line) - 1 - at
        self.previous = line[at - 1] if at else None
        self.next = line[at + 1] if self.ahead else None
        self.sent = []

    def forward(self):
        """Compute the next microbatch and send it on."""
        x = torch.randn(SHAPE)
        if self.previous is not None:
            dist.recv(x, self.previous)
        y = self.model(x.requires_grad_())
        if self.next is not None:
            self.sent.append(dist.isend(y.detach(), self.next))
        return x, y

    def backward(self, x, y):
        """Compute the gradients of a microbatch and send them back."""
        grad = torch.ones(SHAPE)
        if self.next is not None:
            dist.recv(grad, self.next)
        y.backward(grad)
        if self.previous is not None:
            self.sent.append(dist.isend(x.grad, self.previous))

    def step(self):
        """One forward, one backward, after as many forwards as there are stages ahead."""
        held = [self.forward() for _ in range(min(self.ahead, MICROBATCHES))]
        for _ in range(MICROBATCHES - len(held)):
            held.append(self.forward())
            self.backward(*held.pop(0))
        for pair in held:
            self.backward(*pair)
        for work in self.sent:
            work.wait()
        self.sent.clear()


def lines(grid, axis):
    """Return the ranks along one axis and, of this rank's own line, a group."""
    own = None
    for ranks in grid.movedim(axis, -1).reshape(-1, grid.shape[axis]).tolist():
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = ranks, group
    return own


def main(run_dir, sizes, steps):
    """Train under the probe; the sizes are those of PP, DP and TP."""
    probe.attach(run_dir)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    grid = torch.arange(dist.get_world_size()).reshape(sizes)
    (stages, _), (_, replicas), (_, tensor) = (lines(grid, axis) for axis in range(3))
    model = nn.Sequential(*[Block(SHAPE[-1], tensor) for _ in range(2)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stage = Stage(model, stages)
    for _ in range(steps):
        stage.step()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=replicas)
        norm = sum(parameter.grad.square().sum() for parameter in model.parameters())
        dist.all_reduce(norm)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
