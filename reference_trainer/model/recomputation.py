"""Blocks, or parts of them, that run again in the backward in place of keeping what it needs.

``recompute = full`` keeps the input of each block and runs the block again in
the backward up to its last product, the collectives before that included (Chen
et al. 2016, arXiv 1604.06174). ``selective`` runs again what lies before each
row-parallel layer: norm, first linear layer, attention or activation. It keeps
the residual stream and the inputs of the row-parallel layers, and repeats no
all-reduce of tensor parallelism (after Korthikanti et al. 2022, arXiv
2205.05198, section 5, which repeats the attention only). It does repeat the
all-gathers of sequence parallelism and the exchanges of context parallelism, and
keeps what experts need.

Between the halves of a backward that is split into inputs and weights, what was
repeated for the first stays for the second.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ..config.config import TrainerConfig


def recompute_frac(config: TrainerConfig) -> float:
    """Return the part of a block's forward that its backward repeats, by multiplications.

    A block has (4 D^2 + 2 D F) per token with D the width and F that of the MLP;
    before its row-parallel layers are (3 D^2 + D F).
    """
    hidden, ffn = config.model.hidden, config.model.ffn
    selective = (3 * hidden + ffn) / (4 * hidden + 2 * ffn)
    return {"none": 0.0, "full": 1.0, "selective": selective}[config.memory.recompute]


def recomputed(run: Callable[..., Tensor], *inputs: object) -> Tensor:
    """Call a function now, and once more in the backward in place of keeping what it needs there.

    ``torch.utils.checkpoint`` repeats it in every run of the autograd engine, and a backward that
    is split into inputs and weights is a run for the inputs and one for each group of weights.
    Here what was repeated stays until the graph lets go of it. Tensors have any shape. The model
    has no dropout, so the state of random generators is left alone.
    """
    repeat = _Repeat(run, inputs)
    with saved_tensors_hooks(repeat.pack, _Repeat.unpack):
        return run(*inputs)


class _Repeat:
    """A call that keeps its inputs, and is made again when the first of its tensors is wanted.

    Args:
        run: The function; it must do the same again.
        inputs: What it is called with.
    """

    def __init__(self, run: Callable[..., Tensor], inputs: Sequence[object]) -> None:
        self._run = run
        self._others = [None if isinstance(one, Tensor) else one for one in inputs]
        # Kept by autograd, so that hooks around this one decide where.
        tensors = (one for one in inputs if isinstance(one, Tensor))
        self._saved = _SavedInputs.apply(torch.empty(0, requires_grad=True), *tensors)  # type: ignore[no-untyped-call]
        self._wanted: list[weakref.ref[_Wanted]] = []

    def pack(self, _tensor: Tensor) -> _Wanted:
        """Keep a place in the order in which the function's tensors are made."""
        wanted = _Wanted(self)
        self._wanted.append(weakref.ref(wanted))
        return wanted

    @staticmethod
    def unpack(wanted: _Wanted) -> Tensor:
        """Return the tensor of a place."""
        if wanted.tensor is None:
            wanted.repeat.make_again()
        assert wanted.tensor is not None  # the function did the same again
        return wanted.tensor

    def make_again(self) -> None:
        """Call the function until all tensors are there that somebody may still ask for."""
        missing = deque(self._wanted)

        def take(tensor: Tensor) -> None:
            wanted = missing.popleft()()
            if wanted is not None:
                wanted.tensor = tensor.detach()
            if not missing:
                raise _AllThereError

        tensors = iter(self._saved.grad_fn.saved_tensors)
        inputs = [next(tensors) if one is None else one for one in self._others]
        with torch.enable_grad(), saved_tensors_hooks(take, _never), suppress(_AllThereError):
            self._run(*(_fresh(one) if isinstance(one, Tensor) else one for one in inputs))


class _Wanted:
    """The place of a tensor that the backward will ask for; it goes when autograd drops it."""

    def __init__(self, repeat: _Repeat) -> None:
        self.repeat = repeat
        self.tensor: Tensor | None = None


class _SavedInputs(torch.autograd.Function):
    """Lets autograd keep some tensors, which are read from its node; it has no backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.detach()


class _AllThereError(Exception):
    """The rest of a repeated call would make nothing that is wanted."""


def _fresh(tensor: Tensor) -> Tensor:
    """Return the same values at the beginning of a graph of their own."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _never(_packed: None) -> Tensor:
    """Be no tensor: nothing goes backward through a repeated call."""
    raise AssertionError
