"""What a model multiplies in two early steps: which matrices, how often, on how many rows.

Sizes alone do not tell that. A block may run in a loop, a head on the last token only, a tower
never; frozen weights have no gradient of their own, and a reference model has no backward pass.
In two steps the wrapper of ``Module.__call__`` hands each call on to here before it is made, and a mode of
torch hands on what functions multiply: attention, and weights without a module. Nothing is put on a
module, and no value is read: shapes and flags alone. After that the wrapper is as before.

A product of R rows with a matrix of N weights takes 2 R N FLOPs forward, as many again for the
gradient of its input, where that has one, and as many for the gradient of the weights. What is
computed again by checkpointing is not counted (``docs/mfu.md``).

What torch.compile has compiled makes no calls, and a wrapper that changes would have it compile
anew: once it has compiled anything, nothing is observed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from ..clock import now_ns, thread_cpu_ns
from ..compat.torch_names import runs_without_python
from ..cost import CostMeter
from ..safety.program_signals import pass_on
from ..schema.terms import SpanKind
from .fast_paths import fast_products, has_fast_path, without_mode
from .function_products import (
    NotCountedError,
    Product,
    function_mode,
    parameters_used,
    products_of,
    shapes_of,
)
from .graph_products import GraphWork
from .model_modules import entries_of_longest_list
from .module_products import (
    OTHERS_FRAC,
    ModulePart,
    gradients_of,
    rows_of,
    weights_seen,
)
from .pass_work import PassKind, PassWork
from .run_work import RunWork
from .step_work import StepWork
from .values import tensors_of

_NO_GRADIENT = 1
"""Of the parts of training that a product takes part in: forward, gradient of the input, of the weights."""


class WorkObserver:
    """Adds up the products of a step that is observed.

    Args:
        run: Takes them.
        meter: Told what observing took.
    """

    def __init__(self, run: RunWork, meter: CostMeter) -> None:
        self._run = run
        self._meter = meter
        self._is_late = False
        self._taken_ns = 0
        self._graph = GraphWork()
        self._begin()

    def _begin(self) -> None:
        self._parts: dict[int, ModulePart] = {}
        self._roots: list[Any] = []
        self._vocabularies: dict[int, Any] = {}
        self._head_shapes: set[Any] = set()
        self._inside: set[int] = set()
        self._used: set[Any] = set()
        self._calls = 0
        """Module calls: where one call makes no other, it may have multiplied in one kernel."""
        self._widths: set[int] = set()
        self._unpaid: Counter[tuple[int, bool]] = Counter()
        self._pending: Counter[tuple[int, bool]] = Counter()
        self._own_product = 0
        """Multiply-adds of the module that was called last: the function that makes them is no other product."""
        self._tokens = 0
        self._passes: dict[PassKind, PassWork] = {}
        self._pass = PassWork()
        """What outermost calls of the kind of the last one multiplied."""
        self._training = self._pass
        """The same of the last one with gradients, of which a backward pass computes again."""
        self._trained = self._seen = self._squares = 0.0
        self._trains = self._is_odd = self._has_head = self._is_head_called = False
        self._is_uncounted = False
        self._graph = GraphWork(self._graph)

    @property
    def is_blind(self) -> bool:
        """Tell whether a module is compiled."""
        return self._run.is_blind

    def begin_late(self) -> None:
        """Begin to observe the rest of a step."""
        self._begin()
        self._is_late = True

    def add_tokens(self, tokens: int, length: int) -> None:
        """Add the tokens that a forward call of training was given, in sequences of a length."""
        self._tokens += tokens
        self._squares += float(tokens) * length

    def watched(self, module: Any, call: Callable[..., Any], *, again: bool) -> Callable[..., Any]:
        """Return an outermost call that is made while its functions are handed on to here.

        Args:
            module: What is called.
            call: Calls it.
            again: Whether it computes again what a backward pass needs.
        """

        def under_mode(*args: Any, **kwargs: Any) -> Any:
            with function_mode()(self, again=again):
                return call(*args, **kwargs)

        if self.is_blind:
            return call
        made = self.inner(module, call, again=again) or under_mode
        return made if again else partial(self._graph.numbered, made, lambda: self._trained)

    def inner(
        self, module: Any, call: Callable[..., Any], *, again: bool
    ) -> Callable[..., Any] | None:
        """Return how to call a module that would compute in another way under a mode, None for others."""
        if not has_fast_path(module):
            return None

        def as_it_is(*args: Any, **kwargs: Any) -> Any:
            before = self._calls
            result = without_mode(lambda: call(*args, **kwargs))
            if self._calls == before:
                self._note_fast(module, args[1:], kwargs, again=again)
            return result

        return as_it_is

    def _note_fast(self, module: Any, args: Any, kwargs: Any, *, again: bool) -> None:
        try:
            found = fast_products(module, args, kwargs)
            self._add_weights(0 if again else found.weights, _NO_GRADIENT, again=again)
            for product in found.attention:
                self._add_product(product, again=again)
            for own in found.parts:
                if (part := self._parts.get(id(own))) is not None:
                    part.has_run = True
        except Exception as error:  # noqa: BLE001 - an input of a kind that is not known: the step stays open
            pass_on(error)
            self._is_odd = True

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
        self._calls += 1
        if around is None:
            self._trains, self._is_head_called = grads, False
            kind, rows = self._run.last
            self._pass = self._passes.setdefault(kind, PassWork())
            self._pass.rows += rows
            self._training = self._pass if grads else self._training
        part = self._parts.get(id(module))
        if part is None and (around is None or has_fast_path(module)):
            self._meet(module)
            part = self._parts.get(id(module))
        if part is not None and (part.weights or part.is_layer):
            again = around is not None and around.kind is not SpanKind.FORWARD
            self._add(part, args, kwargs, grads=grads, again=again)
        elif part is not None:
            part.has_run = True
        self._taken_ns += now_ns() - entered_ns

    def note_function(self, name: str, args: Any, kwargs: Any, result: Any, *, again: bool) -> None:
        """Note what a function multiplied or used; what cannot be counted leaves the step open.

        Args:
            name: The name of the function.
            args: Its arguments.
            kwargs: Its arguments by name.
            result: What it returned.
            again: Whether it computes again what a backward pass needs.
        """
        entered_ns = now_ns()
        try:
            for product in products_of(name, args, kwargs, result):
                self._add_product(product, again=again)
            for own in parameters_used(name, args):
                self._used.update(shapes_of(own))
        except NotCountedError:
            self._is_uncounted = True
        except Exception as error:  # noqa: BLE001 - arguments of a kind that is not known: the sizes count
            pass_on(error)
            self._is_odd = True
        self._taken_ns += now_ns() - entered_ns

    def note_result(self, result: Any) -> None:
        """Note what an outermost call returned: logits without the call of a head come of a function.

        One that multiplies with the weights of an embedding, as tied heads do.
        """
        if self._is_head_called:
            return
        for given in tensors_of(result):
            vocabulary = given.shape[-1] if given.dim() > 1 else 0
            embedding = self._vocabularies.get(vocabulary)
            # Of a vocabulary as large as the model is wide, hidden states look like logits.
            if embedding is None or vocabulary == embedding.embedding_dim:
                continue
            rows, weights = given.numel() // vocabulary, vocabulary * embedding.embedding_dim
            trained = given.requires_grad * (1 + embedding.weight.requires_grad)
            self._add_weights(rows * weights, _NO_GRADIENT + trained, again=False)
            self._has_head = True
            return

    def note_backward(self, results: Any) -> None:
        """Note what a backward pass from some results meets that was multiplied outside of module calls."""
        entered_ns = now_ns()
        self._graph.meet(results)
        self._taken_ns += now_ns() - entered_ns

    def step_ended(self) -> None:
        """Take what an observed step had.

        To be called before the gradients of the step are dropped.
        """
        entered_ns = thread_cpu_ns()
        if self._is_late or self._tokens or (self._trained and not self._run.has_tokens):
            self._run.take(self._work(), is_late=self._is_late)
        self._is_late = False
        self._begin()
        taken_ns = thread_cpu_ns() - entered_ns
        self._meter.leave_out(taken_ns)  # It is inside of a border.
        self._meter.once_ns += taken_ns + self._taken_ns
        self._taken_ns = 0

    def _work(self) -> StepWork:
        parts = self._parts.values()
        weights, unseen = weights_seen(parts, self._roots, self._used)
        graph, noted = self._graph, self._trained
        is_uncounted = self._is_uncounted or graph.is_uncounted(noted)
        is_odd = self._is_odd or is_uncounted or any(self._unpaid.values())
        has_head = self._has_head or bool(graph.widths & self._vocabularies.keys())
        return StepWork(
            self._tokens,
            self._passes,
            graph.outside - graph.never_met(noted),
            is_whole=not is_odd and weights > 0 and unseen <= OTHERS_FRAC * weights,
            has_head=has_head or not self._vocabularies or graph.is_all,
            is_all=graph.is_all,
            is_uncounted=is_uncounted,
            squares=self._squares,
            seen=self._seen + graph.seen,
            unseen=float(unseen),
            is_mixed=len(self._widths) > 1,
            unmet_before=graph.unmet_before(),
        )

    def _meet(self, root: Any) -> None:
        """Look through an outermost module once in a step."""
        self._roots.append(root)
        modules = list(root.modules())
        for own in modules:
            self._run.is_blind |= runs_without_python(own)
            self._parts.setdefault(id(own), ModulePart(own))
            # Its copies run in threads of their own, whose functions are not seen.
            self._is_odd |= type(own).__name__ == "DataParallel"
            # What a module does not have takes it long to say.
            if isinstance(rows := vars(own).get("num_embeddings"), int):
                self._vocabularies[rows] = own
                self._head_shapes.add(own.weight.shape)
        for part in list(self._parts.values()):
            # The last product of attention is made without a call of the module that holds its weights.
            if part.weights and "in_proj_weight" in part.module._parameters:
                self._parts.pop(id(part.module.out_proj), None)
        for layer in entries_of_longest_list(modules):
            part = self._parts[id(layer)]
            part.is_layer = not part.weights
            # An MLP as wide as the vocabulary is no head.
            self._inside.update(id(own) for own in layer.modules() if own is not layer)

    def _add(self, part: ModulePart, args: Any, kwargs: Any, *, grads: bool, again: bool) -> None:
        given: Any = args[0] if args else next(tensors_of(kwargs), None)
        shape = getattr(given, "shape", None)
        if not shape or (part.weights and shape[-1] != part.width):
            self._is_odd = True
            return
        rows, parts = rows_of(part, given, args), 0 if again else _NO_GRADIENT
        if again:
            parts = gradients_of(part, given) if grads and part.pending else 0
            part.pending -= bool(parts)
        elif grads:
            parts += gradients_of(part, given)
        elif self._trains:
            part.pending += 1
        part.has_run = True
        if part.is_layer:
            self._pass_of(again=again).layers += rows * parts
            self._widths.add(int(shape[-1]))
            return
        self._own_product = int(rows * part.weights)
        self._add_weights(self._own_product, parts, again=again)
        is_head = getattr(part.module, "out_features", 0) in self._vocabularies
        if is_head and id(part.module) not in self._inside:
            self._has_head = self._is_head_called = True

    def _pass_of(self, *, again: bool) -> PassWork:
        return self._training if again else self._pass

    def _add_weights(self, products: int, parts: int, *, again: bool) -> None:
        self._pass_of(again=again).weights += products * parts
        if self._trains or again:
            self._trained += products * parts
            self._seen += 0 if again else products

    def _add_product(self, product: Product, *, again: bool) -> None:
        if product.macs == self._own_product and not product.of_tokens:
            self._own_product = 0
            return
        parts = self._parts_of(product, again=again)
        if product.of_tokens:
            self._pass_of(again=again).attention += product.macs * parts
            self._trained += product.macs * parts if self._trains or again else 0
            return
        self._add_weights(product.macs, parts, again=again)
        shapes = {*shapes_of(product.first), *shapes_of(product.second)}
        self._used |= shapes
        if product.out_width in self._vocabularies and shapes & self._head_shapes:
            self._has_head = self._is_head_called = True

    def _parts_of(self, product: Product, *, again: bool) -> int:
        """Return how many parts of training a product of a function is seen to have here."""
        import torch

        grads = torch.is_grad_enabled()
        gradients = int(product.first.requires_grad) + int(product.second.requires_grad)
        key = product.macs, product.of_tokens
        if again:
            if not grads or not self._pending[key]:
                return 0
            self._pending[key] -= 1
            self._unpaid[key] -= self._unpaid[key] > 0
            return gradients
        forward = _NO_GRADIENT * product.forward
        if grads:
            return forward + gradients
        if self._trains:
            # Of reentrant checkpointing, or of a backward pass that is not torch's own and never seen.
            self._pending[key] += 1
            self._unpaid[key] += gradients > 0
        return forward
