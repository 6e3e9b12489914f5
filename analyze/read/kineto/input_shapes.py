"""Input shapes of operators: short texts, each kept once, from which the arithmetic follows.

Profilers record them on demand (``record_shapes`` of ``torch.profiler``). A text such as
``bf16[640] bf16[888,2880]`` names element type and sizes of each tensor in the order
of the inputs; inputs of other kinds, lists of tensors among them, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ...formulas.operator_flops import CAUSAL, operator_flops
from .event_columns import Events, IntArray, RoledEvents
from .events import EventArgs, EventContent

_NO_SHAPES = -1
_MOST_LENGTH = 400
"""Characters of a text; optimizers that take all parameters at once have more."""
_SHORT_TYPES = {
    "c10::BFloat16": "bf16",
    "c10::Half": "f16",
    "float": "f32",
    "double": "f64",
    "c10::Float8_e4m3fn": "f8e4m3",
    "c10::Float8_e4m3fnuz": "f8e4m3fnuz",
    "c10::Float8_e5m2": "f8e5m2",
    "c10::Float8_e5m2fnuz": "f8e5m2fnuz",
    "signed char": "i8",
    "unsigned char": "u8",
    "short int": "i16",
    "int": "i32",
    "long int": "i64",
    "bool": "bool",
}
"""Element types as the profiler writes them; what else has a type is no tensor."""
_IS_CAUSAL = {
    "aten::_scaled_dot_product_flash_attention": 4,
    "aten::_scaled_dot_product_flash_attention_backward": 11,
    "aten::_scaled_dot_product_efficient_attention": 6,
    "aten::_scaled_dot_product_efficient_attention_backward": 11,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
    "aten::_flash_attention_forward": 8,
    "aten::_flash_attention_backward": 11,
    "aten::_efficient_attention_forward": 9,
    "aten::_efficient_attention_backward": 14,
    "aten::_cudnn_attention_forward": 10,
    "aten::_cudnn_attention_backward": 14,
}
"""Position of the input that says whether the mask is causal."""
_Recorded = tuple[bytes, bytes, str]
"""Sizes and types of the inputs of an operator as JSON text, and its mask, empty if it has none."""
_NOTHING: _Recorded = (b"", b"", "")
_CAUSAL_VALUES = ("True", "1", "2")
"""True, or the kinds of causal masks that the operators called efficient count."""


class InputShapes:
    """Gives each distinct text of shapes a code."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._codes: dict[_Recorded, int] = {_NOTHING: _NO_SHAPES}

    @property
    def texts(self) -> list[str]:
        """Return the texts at the positions that are their codes."""
        return list(self._texts)

    def codes(self, rows: Sequence[EventContent]) -> IntArray:
        """Return the code of each operator, -1 for those without shapes."""
        recorded = list(map(_recorded, rows))
        for new in set(recorded) - self._codes.keys():
            self._codes[new] = self._new(*new)
        return np.fromiter(map(self._codes.__getitem__, recorded), np.int64, len(rows))

    def _new(self, dims: bytes, types: bytes, mask: str) -> int:
        text = " ".join([*_tensors(_list(dims), _list(types)), *filter(None, [mask])])
        if not text or len(text) > _MOST_LENGTH:
            return _NO_SHAPES
        return self._texts.setdefault(text, len(self._texts))


class ShapeColumns:
    """The columns of operators that follow from their shapes.

    Args:
        roles: The events of a file.
    """

    def __init__(self, roles: RoledEvents) -> None:
        self._names = roles.names
        self._texts = roles.shapes
        self._flops: dict[int, float] = {}

    def of(self, operators: Events) -> dict[str, pa.Array]:
        """Return ``shapes`` and ``flops`` of operators; null where they are not known."""
        has_shapes = operators.shapes >= 0
        pair = operators.name[has_shapes] * len(self._texts) + operators.shapes[has_shapes]
        pairs, place = np.unique(pair, return_inverse=True)
        flops = np.full(len(operators), np.nan)
        flops[has_shapes] = np.array([self._of_pair(one) for one in pairs.tolist()])[place]
        return {
            "shapes": pa.array(self._texts, pa.string()).take(
                pa.array(operators.shapes, mask=~has_shapes)
            ),
            "flops": pa.array(flops, mask=np.isnan(flops)),
        }

    def _of_pair(self, pair: int) -> float:
        if pair not in self._flops:
            name, code = divmod(pair, len(self._texts))
            flops = operator_flops(self._names[name], self._texts[code])
            self._flops[pair] = float("nan") if flops is None else flops
        return self._flops[pair]


def _recorded(row: EventContent) -> _Recorded:
    args = row.args
    if args is None or not args.input_dims:
        return _NOTHING
    mask = CAUSAL if row.name in _IS_CAUSAL and _is_causal(row.name, args) else ""
    return bytes(args.input_dims), bytes(args.input_types), mask


def _tensors(dims: list[Any], types: list[Any]) -> Iterator[str]:
    """Yield the text of each input that is a tensor; an absent one has no type."""
    for sizes, kind in zip(dims, types, strict=False):
        short = _SHORT_TYPES.get(kind) if isinstance(kind, str) else None
        if short is None or not isinstance(sizes, list):
            continue
        if all(isinstance(size, int) and size >= 0 for size in sizes):
            yield f"{short}[{','.join(map(str, sizes))}]"


def _is_causal(name: str, args: EventArgs) -> bool:
    values, place = _list(bytes(args.input_values)), _IS_CAUSAL[name]
    return len(values) > place and str(values[place]) in _CAUSAL_VALUES


def _list(text: bytes) -> list[Any]:
    """Return a JSON list; nothing where it is none."""
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return []
    return found if isinstance(found, list) else []
