"""What the modules of a model multiply in two early steps: which ran, how often, on how many rows.

Sizes alone do not tell that. A block may run in a loop, a head on the last token only, a tower
never; frozen weights have no gradient of their own, and a reference model has no backward pass.
In two steps the wrapper of ``Module.__call__`` hands each call on to here before it is made. Nothing is
put on a module, and no value is read: shapes and flags alone. After that the wrapper is as before.

A product of R rows with a matrix of N weights takes 2 R N FLOPs forward, as many again for the
gradient of its input, where that has one, and as many for the gradient of the weights. What is
computed again by checkpointing is not counted (``docs/mfu.md``).

What torch.compile has compiled makes no calls, and a wrapper that changes would have it compile
anew: once it has compiled anything, nothing is observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..clock import now_ns, thread_cpu_ns
from ..compat.torch_names import runs_without_python
from ..cost import CostMeter
from ..schema.terms import SpanKind
from .model_modules import entries_of_longest_list

_STEPS = 2
"""Steps that are observed. Where they differ, two are no mean of a run."""
_FIRST_STEP = 1
"""The first step has what is done once: sanity checks, lazy modules, compilation."""
_LAST_STEP = 6
"""From the step after it on a job far over its budget is recorded in windows."""
_SAME = 0.01
"""Steps whose work of a token differs by more are unlike."""
_OTHERS_FRAC = 0.01
"""Share of the weights whose products may stay unseen: positions, small projections."""
_NO_GRADIENT, _PER_TRAINING = 1, 3
"""Parts of training that a product takes part in: forward, gradient of the input, of the weights."""

Learn = Callable[[Mapping[str, Any]], None]


class StepWork(NamedTuple):
    """What one step multiplied, in weights times rows; a third each for the three parts of training."""

    tokens: int
    trained: float
    forward_only: float
    layers: float
    is_whole: bool
    has_head: bool


class _Part:
    """One module: what its call multiplies."""

    __slots__ = ("has_run", "is_layer", "module", "pending", "weights", "width")

    def __init__(self, module: Any) -> None:
        self.module = module
        self.weights, self.width = product_of(module)
        self.is_layer = self.has_run = False
        self.pending = 0
        """Calls under reentrant checkpointing: their gradients come with the recomputation."""


class WorkObserver:
    """Adds up the products of the steps that it is told to observe.

    Attributes:
        is_blind: A module is compiled: nothing is to be observed any more, nor may it be while that compiles.

    Args:
        learn: Told the result, once.
        meter: Told what observing took.
    """

    def __init__(self, learn: Learn, meter: CostMeter) -> None:
        self._learn = learn
        self._meter = meter
        self._done: list[StepWork] = []
        self._taken_ns = 0
        self.is_blind = False
        self._begin()

    def _begin(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._roots: list[Any] = []
        self._vocabularies: dict[int, Any] = {}
        self._inside: set[int] = set()
        self._tokens = 0
        self._trained = self._forward_only = self._layers = 0.0
        self._trains = self._is_odd = self._has_head = self._is_head_called = False

    def wants(self, step: int) -> bool:
        """Tell whether a step is to be observed."""
        is_early = _FIRST_STEP <= step <= _LAST_STEP
        return is_early and len(self._done) < _STEPS and not self.is_blind

    def add_tokens(self, tokens: int) -> None:
        """Add the tokens that a forward call of training was given."""
        self._tokens += tokens

    def note(self, module: Any, args: Any, kwargs: Any, around: Any, *, grads: bool) -> None:
        """Note a call that is about to be made.

        Args:
            module: What is called.
            args: Its arguments.
            kwargs: Its arguments by name.
            around: The place in progress; None for an outermost call.
            grads: Whether gradients are recorded.
        """
        entered_ns = now_ns()
        if around is None:
            self._trains, self._is_head_called = grads, False
        part = self._parts.get(id(module))
        if part is None and around is None:
            self._meet(module)
            part = self._parts.get(id(module))
        if part is not None and (part.weights or part.is_layer):
            again = around is not None and around.kind is not SpanKind.FORWARD
            self._add(part, args, kwargs, grads=grads, again=again)
        elif part is not None:
            part.has_run = True
        self._taken_ns += now_ns() - entered_ns

    def note_result(self, result: Any) -> None:
        """Note what an outermost call returned: logits without the call of a head come of a function.

        One that multiplies with the weights of an embedding, as tied heads do.
        """
        if self._is_head_called:
            return
        for given in _tensors(_values_of(result)):
            vocabulary = given.shape[-1] if given.dim() > 1 else 0
            embedding = self._vocabularies.get(vocabulary)
            # Of a vocabulary as large as the model is wide, hidden states look like logits.
            if embedding is None or vocabulary == embedding.embedding_dim:
                continue
            rows, weights = given.numel() // vocabulary, vocabulary * embedding.embedding_dim
            trained = given.requires_grad * (1 + embedding.weight.requires_grad)
            products = rows * weights * (_NO_GRADIENT + trained)
            self._trained += products * self._trains
            self._forward_only += products * (not self._trains)
            self._has_head = True
            return

    def step_ended(self) -> None:
        """Take what the step had; tell the result once there is enough of it.

        To be called before the gradients of the step are dropped.
        """
        entered_ns = thread_cpu_ns()
        if self._tokens:
            self._done.append(
                StepWork(
                    self._tokens,
                    self._trained / _PER_TRAINING,
                    self._forward_only / _PER_TRAINING,
                    self._layers / _PER_TRAINING,
                    self._is_whole(),
                    self._has_head or not self._vocabularies,
                )
            )
            if len(self._done) == _STEPS:
                self._learn({"observed": observed_fields(self._done)})
        self._begin()
        taken_ns = thread_cpu_ns() - entered_ns
        self._meter.leave_out(taken_ns)  # It is inside of a border.
        self._meter.once_ns += taken_ns + self._taken_ns
        self._taken_ns = 0

    def _meet(self, root: Any) -> None:
        """Look through an outermost module once in a step."""
        self._roots.append(root)
        for own in list(root.modules()):
            self.is_blind |= runs_without_python(own)
            self._parts.setdefault(id(own), _Part(own))
            # What a module does not have takes it long to say.
            if isinstance(rows := vars(own).get("num_embeddings"), int):
                self._vocabularies[rows] = own
        for part in list(self._parts.values()):
            # The last product of attention is made without a call of the module that holds its weights.
            if part.weights and "in_proj_weight" in part.module._parameters:
                self._parts.pop(id(part.module.out_proj), None)
        for layer in entries_of_longest_list(root):
            part = self._parts[id(layer)]
            part.is_layer = not part.weights
            # An MLP as wide as the vocabulary is no head.
            self._inside.update(id(own) for own in layer.modules() if own is not layer)

    def _add(self, part: _Part, args: Any, kwargs: Any, *, grads: bool, again: bool) -> None:
        given: Any = args[0] if args else next(_tensors(kwargs.values()), None)
        shape = getattr(given, "shape", None)
        if not shape or (part.weights and shape[-1] != part.width) or _is_crossed(part, args):
            self._is_odd = True
            return
        rows, parts = given.numel() // shape[-1], 0 if again else _NO_GRADIENT
        if again:
            parts = self._gradients(part, given) if grads and part.pending else 0
            part.pending -= bool(parts)
        elif grads:
            parts += self._gradients(part, given)
        elif self._trains:
            part.pending += 1
        part.has_run = True
        if part.is_layer:
            self._layers += rows * parts
        elif self._trains or again:
            self._trained += rows * part.weights * parts
        else:
            self._forward_only += rows * part.weights * parts
        is_head = getattr(part.module, "out_features", 0) in self._vocabularies
        if is_head and id(part.module) not in self._inside:
            self._has_head = self._is_head_called = True

    @staticmethod
    def _gradients(part: _Part, given: Any) -> int:
        """Return how many of the two gradients a call has: of its input, of its weights."""
        if part.is_layer:
            trained = any(own.requires_grad for own in part.module.parameters())
            return 2 if trained or given.requires_grad else 0
        weight = getattr(part.module, "weight", None)
        if weight is None:
            weight = part.module.in_proj_weight
        return int(given.requires_grad) + int(weight.requires_grad)

    def _is_whole(self) -> bool:
        """Tell whether nearly all weights that could multiply were seen to do so, or to do nothing.

        A weight that no call used was not used at all if it got no gradient while others did.
        """
        parts = self._parts.values()
        weights = sum(part.weights for part in parts)
        has_gradients = any(
            own.grad is not None for root in self._roots for own in root.parameters()
        )
        unseen = sum(
            part.weights
            for part in parts
            if part.weights and not part.has_run and not (has_gradients and _is_unused(part.module))
        )
        unknown = sum(_other_matrices(part) for part in parts)
        return not self._is_odd and weights > 0 and unseen + unknown <= _OTHERS_FRAC * weights


def observed_fields(steps: list[StepWork]) -> dict[str, Any]:
    """Return what steps show, as fields of a description of the model; empty where they show nothing.

    A forward pass without gradients counts as often as the step has it that has the least: an
    evaluation now and then is not of the step.
    """
    if not all(step.is_whole for step in steps):
        return {}
    if not all(step.has_head for step in steps):
        return {"headless": True}
    each = [step.trained / step.tokens for step in steps]
    if max(each) > (1 + _SAME) * min(each):
        return {"varies": True}
    tokens = sum(step.tokens for step in steps)
    extra = min(step.forward_only / step.tokens for step in steps)
    return {
        "ran_products": sum(step.trained for step in steps) / tokens + extra,
        "ran_layers": sum(step.layers for step in steps) / tokens,
    }


def product_of(module: Any) -> tuple[int, int]:
    """Return how many weights a call of a module multiplies, and the width of its input; zeros for none.

    Known are ``nn.Linear`` and what is made like it (two widths and one matrix), the transposed
    one of GPT-2 in transformers, and ``nn.MultiheadAttention`` with inputs of one width.
    """
    from torch import nn

    own = module._parameters
    if isinstance(module, nn.MultiheadAttention):
        inside = own.get("in_proj_weight")
        return (0, 0) if inside is None else (4 * module.embed_dim**2, module.embed_dim)
    weight = own.get("weight", vars(module).get("weight"))
    if weight is None or isinstance(module, nn.Embedding):
        return 0, 0
    out, width = getattr(module, "out_features", None), getattr(module, "in_features", None)
    if type(out) is int and type(width) is int:
        fits = isinstance(module, nn.Linear) or tuple(weight.shape) == (out, width)
        return (out * width, width) if fits else (0, 0)
    is_transposed = type(module).__name__ == "Conv1D" and weight.dim() == 2
    return (weight.numel(), int(weight.shape[0])) if is_transposed else (0, 0)


def doubts_of(root: Any) -> dict[str, bool]:
    """Return what makes the FLOPs of a model other than its sizes say, until its products were observed.

    Frozen weights: how much of a backward pass is left is not known. No module over the
    vocabulary: a model without its output head, or one that multiplies in a way of its own.
    """
    from torch import nn

    modules = list(root.modules()) if isinstance(root, nn.Module) else []
    parts = [_Part(own) for own in modules]
    weights = sum(part.weights for part in parts)
    frozen = sum(part.weights for part in parts if not _is_trained(part.module))
    whole = {
        own.num_embeddings
        for own in modules
        if isinstance(own, nn.Embedding) and own.weight.shape[0] == own.num_embeddings
    }
    heads = whole & {getattr(own, "out_features", None) for own in modules}
    doubts = {"frozen": frozen > _OTHERS_FRAC * weights, "headless": bool(whole) and not heads}
    return {name: True for name, is_so in doubts.items() if is_so}


def _is_trained(module: Any) -> bool:
    return any(own.requires_grad for own in module._parameters.values() if own is not None)


def _is_unused(module: Any) -> bool:
    """Tell whether a module that was not called got no gradient, which its weights could have."""
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    return _is_trained(module) and all(parameter.grad is None for parameter in own)


def _other_matrices(part: _Part) -> int:
    """Return the elements of matrices of a module whose use is not known: experts in one tensor, kernels."""
    from torch import nn

    if part.weights or isinstance(part.module, nn.Embedding):
        return 0
    own = part.module._parameters.values()
    return sum(each.numel() for each in own if each is not None and each.dim() > 1)


def _is_crossed(part: _Part, args: Any) -> bool:
    """Tell whether an attention has other rows of keys than of queries."""
    has_keys = "in_proj_weight" in part.module._parameters and len(args) > 1
    return bool(has_keys and args[1].shape != args[0].shape)


def _values_of(result: Any) -> Iterable[Any]:
    """Return what a call returned, one by one."""
    if isinstance(result, Mapping):
        return result.values()
    return result if isinstance(result, tuple | list) else (result,)


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in values if hasattr(value, "requires_grad"))
