"""Matrix products of functions: attention, and weights that multiply without a module of their own.

While a step is observed, the outermost module calls run under a ``TorchFunctionMode``: it is handed each
function of torch that Python code calls, here in this thread. The function is called first and as it was;
then the shapes of its operands say what it multiplied. Kernels of other libraries, and C++ code that calls
the operators itself, are not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from ..compat.torch_names import is_compiling

_MATRIX_DIM = 2
_USES = frozenset(
    (
        *("add", "__add__", "__radd__", "__iadd__", "sub", "__sub__", "mul", "__mul__", "__rmul__"),
        *("cat", "expand", "expand_as", "repeat", "where", "index_select"),
        *("__getitem__", "layer_norm", "exp", "neg", "__neg__", "sigmoid", "softplus", "tanh"),
    )
)
"""Functions in which a parameter multiplies no matrix: position tables, first tokens, decays."""


class NotCountedError(Exception):
    """A function multiplied in a way that is not counted here."""


class Product(NamedTuple):
    """A product of two operands.

    Attributes:
        macs: Multiply-adds of a forward pass.
        first: One operand.
        second: The other one.
        out_width: The last size of the result.
        of_tokens: Both operands come from tokens, as the scores of attention do.
        forward: How often it is made in a forward pass: not at all where a gradient alone is a product.
    """

    macs: int
    first: Any
    second: Any
    out_width: int
    of_tokens: bool = False
    forward: int = 1


def products_of(name: str, args: Any, kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    """Return the products that a call of a function made, none of a function that makes none.

    Args:
        name: The name of the function.
        args: Its arguments.
        kwargs: Its arguments by name.
        result: What it returned.

    Raises:
        NotCountedError: It multiplied in a way that is not counted.
        Exception: Arguments are given in a way that is not known here.
    """
    found = _KINDS.get(name)
    return [] if found is None else [own for own in found(args, kwargs, result) if own.macs]


def _matmul(args: Any, kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    first, second = _operands(args, kwargs, 0)
    return [_of_two(first, second, result, int(first.shape[-1]))]


def _matmul_from_right(args: Any, kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    return _matmul((args[1], args[0]), kwargs, result)


def _sum_and_matmul(args: Any, kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    first, second = _operands(args, kwargs, 1)
    return [_of_two(first, second, result, int(first.shape[-1]))]


def _linear(args: Any, kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    first, weight = _operands(args, kwargs, 0, ("input", "weight"))
    return [Product(result.numel() * int(first.shape[-1]), first, weight, int(result.shape[-1]))]


def _convolution(args: Any, kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    given, weight = _operands(args, kwargs, 0, ("input", "weight"))
    each = weight.numel() // int(weight.shape[0])
    return [Product(result.numel() * each, given, weight, 0)]


def _transposed_convolution(args: Any, kwargs: Mapping[str, Any], _: Any) -> list[Product]:
    given, weight = _operands(args, kwargs, 0, ("input", "weight"))
    each = weight.numel() // int(weight.shape[0])
    return [Product(given.numel() * each, given, weight, 0)]


def _attention(args: Any, kwargs: Mapping[str, Any], _: Any) -> list[Product]:
    """Return scores and their use: ``B H T_q T_k`` times the widths of keys and of values."""
    query, key, value = _three(args, kwargs)
    scores = query.numel() // int(query.shape[-1]) * int(key.shape[-2])
    # The scores have a gradient where queries or keys have one.
    asked = query if query.requires_grad else key
    return [
        Product(scores * int(query.shape[-1]), query, key, 0, of_tokens=True),
        Product(scores * int(value.shape[-1]), asked, value, 0, of_tokens=True),
    ]


def _attention_of_module(args: Any, kwargs: Mapping[str, Any], _: Any) -> list[Product]:
    """Return scores and their use; the four matrices of ``nn.MultiheadAttention`` are its own product."""
    query, key, value = _three(args, kwargs)
    macs = query.numel() * int(key.shape[0])
    return [Product(macs, query, own, 0, of_tokens=True) for own in (key, value)]


def _triangular(args: Any, _kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    """Return the gradient of a triangular matrix that is solved with, as delta rules do: the solution by itself.

    Solving is substitution, which is no matrix product.
    """
    matrix = args[0]
    macs = result.numel() * int(matrix.shape[-1])
    return [Product(macs, matrix, result.detach(), 0, of_tokens=True, forward=0)]


def _einsum(args: Any, _kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    """Return the product of two operands that are summed over labels they share.

    Raises:
        NotCountedError: There are more operands, or labels are numbers.
    """
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if len(operands) == 1:
        return []
    if not isinstance(equation, str) or len(operands) != 2:
        raise NotCountedError
    inputs, _, output = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for labels, operand in zip(inputs.split(","), operands, strict=True):
        tail = labels.rpartition("...")[2]
        head = labels.partition("...")[0] if "..." in labels else ""
        sizes |= dict(zip(head, operand.shape, strict=False))
        sizes |= dict(zip(reversed(tail), reversed(operand.shape), strict=False))
    first, second = (set(labels) for labels in inputs.split(","))
    summed = (first & second) - set(output) - {"."}
    inner = 1
    for label in summed:
        inner *= int(sizes[label])
    return [_of_two(operands[0], operands[1], result, inner)] if summed else []


def _not_counted(args: Any, kwargs: Mapping[str, Any], result: Any) -> list[Product]:
    raise NotCountedError


_KINDS: dict[str, Callable[[Any, Mapping[str, Any], Any], list[Product]]] = {
    **dict.fromkeys(("matmul", "__matmul__", "mm", "bmm", "mv"), _matmul),
    **dict.fromkeys(("_grouped_mm", "grouped_mm"), _matmul),
    "__rmatmul__": _matmul_from_right,
    **dict.fromkeys(("addmm", "baddbmm"), _sum_and_matmul),
    **dict.fromkeys(("tensordot", "inner", "chain_matmul", "bilinear"), _not_counted),
    **dict.fromkeys(("multi_dot", "linalg_multi_dot", "addmv", "addbmm"), _not_counted),
    **dict.fromkeys(("linalg_inv", "inverse", "linalg_pinv", "pinverse"), _not_counted),
    **dict.fromkeys(("linalg_solve", "linalg_lstsq", "linalg_matrix_exp"), _not_counted),
    **dict.fromkeys(("matrix_exp", "matrix_power", "linalg_matrix_power"), _not_counted),
    "linalg_solve_triangular": _triangular,
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed_convolution
    ),
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _attention_of_module,
    "einsum": _einsum,
}


def _three(args: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    """Return queries, keys and values, by place or by name."""
    names = ("query", "key", "value")
    return [*args[:3], *(kwargs[name] for name in names[len(args) :])]


def _operands(
    args: Any, kwargs: Mapping[str, Any], skipped: int, names: tuple[str, ...] = ()
) -> tuple[Any, Any]:
    """Return two operands behind skipped ones, by place or by name."""
    given = list(args[skipped : skipped + 2])
    known = names or tuple(
        name for name in ("other", "mat1", "mat2", "batch1", "batch2", "vec") if name in kwargs
    )
    given += [kwargs[name] for name in known[len(given) if names else 0 :] if name in kwargs]
    first, second = given[:2]
    return first, second


def _of_two(first: Any, second: Any, result: Any, inner: int) -> Product:
    # An outer product is no sum: rotary angles are positions times frequencies.
    macs = result.numel() * inner if inner > 1 else 0
    is_parameter = any(_is_weight(own) for own in (first, second))
    of_tokens = not is_parameter and min(first.dim(), second.dim()) > _MATRIX_DIM
    width = int(result.shape[-1]) if result.dim() else 0
    return Product(macs, first, second, width, of_tokens)


def _is_weight(operand: Any) -> bool:
    """Tell whether an operand is a parameter, or a part or transpose of one."""
    return _is_parameter(operand) or _is_parameter(operand._base)


def shapes_of(operand: Any) -> tuple[Any, ...]:
    """Return the shape of a tensor, and that of the tensor that it is a part of."""
    base = operand._base
    return (operand.shape,) if base is None else (operand.shape, base.shape)


def parameters_used(name: str, args: Any) -> list[Any]:
    """Return the parameters that a call of a function used without multiplying a matrix."""
    return [own for own in _flat(args) if _is_parameter(own)] if name in _USES else []


def _is_parameter(operand: Any) -> bool:
    """Tell whether an operand is a parameter, in the way of ``isinstance``, which is ten times slower."""
    from torch.nn import Parameter

    return issubclass(type(operand), Parameter) or getattr(operand, "_is_param", False)


def _flat(args: Any) -> Iterator[Any]:
    """Return arguments, those in a list one by one."""
    for own in args:
        yield from own if isinstance(own, list | tuple) else (own,)


@cache
def function_mode() -> Any:
    """Return the class of the mode; it is told whom to hand calls on to."""
    from torch.overrides import TorchFunctionMode

    compiling = is_compiling()

    class FunctionProducts(TorchFunctionMode):
        """Hands what functions multiply on to an observer."""

        def __init__(self, observer: Any, *, again: bool) -> None:
            super().__init__()
            self._observer = observer
            self._again = again

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            named = kwargs or {}
            if compiling():
                return func(*args, **named)
            result = func(*args, **named)
            name = getattr(func, "__name__", "")
            if name in _KINDS or name in _USES:
                self._observer.note_function(name, args, named, result, again=self._again)
            return result

    return FunctionProducts
