"""FLOPs of a token: from the model of a run, under conventions that have names.

The formulas are those of ``probe.schema.model``. Captures that hold a description of the model have
exact ones. Those that hold sizes alone (layers, widths, vocabulary, parameters) leave open whether
the embedding is tied, how many heads keys have, and whether there are experts: the parameters
decide between them (``inferred_models``), or MFU is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model import (
    CONVENTIONS,
    DEFAULT_CONVENTION,
    ModelDescription,
    describe_model,
)
from meshscope.probe.schema.model import flops_per_token as flops_of_description
from meshscope.probe.schema.model.counts import conventions_of as described_conventions
from meshscope.probe.schema.model.counts import (
    head_flops,
    idle_parameters,
    layer_flops,
    products_of_sizes,
    total_parameters,
)
from meshscope.probe.schema.model.fields import REFUSED

from ..wording.limits import Limit
from ..wording.message import Message, Text, message, message_of_cell
from .inferred_models import inferred_models

__all__ = [
    "CONVENTIONS",
    "DEFAULT_CONVENTION",
    "ModelShape",
    "flops_per_token",
    "head_in_layers",
    "known_model",
    "model_shape",
]

_SAME = 0.005
"""Models whose FLOPs differ by less need not be separated."""
_NOTHING_SEEN: dict[str, Any] = {
    **dict.fromkeys(("ran_products", "ran_layers", "ran_keys", "ran_attention"), 0.0),
    **dict.fromkeys(("seen_products", "unseen_weights"), 0.0),
    **dict.fromkeys(
        ("headless", "varies", "mixed", "uncounted", "complete", "partial", "unmet"), False
    ),
    "ran_without": 0.0,
    "per_step": False,
}
"""Fields of what was seen to run, where nothing was."""
_OPEN = {
    "varies": message("lacks.like_steps"),
    "uncounted": message("lacks.counted_functions"),
    "partial": message("lacks.all_passes"),
    "other_passes": message("lacks.all_passes"),
    "unmet": message("lacks.backward_passes"),
}
"""What was seen to run and leaves the FLOPs open, by its field."""
_FORWARDS = 3.0
"""Forward passes that training on a token is worth."""
_FEW = 0.01
"""A smaller share of passes without gradients is not told."""
_UNLIKE = 0.02
"""Stated parameters that differ by more from those of the stated sizes contradict them."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes alone, without heads and MLP: a dense model with a head of its own is assumed."""

    num_layers: int
    hidden_size: int
    seq_len: int
    vocab_size: int
    parameters: int


class RanModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a token multiplied in two steps, all of it: of a model whose sizes are not known."""

    ran_products: float
    """Weights, as ``ModelDescription`` counts them."""
    ran_attention: float = 0.0
    """Multiply-adds with other tokens."""
    ran_keys: float = 0.0
    """Tokens of a sequence where it ran; 0: not known."""
    ran_without: float = 0.0
    """Of both, the part of passes without gradients."""
    per_step: bool = False
    """It is that of a step of one rank, which is given no tokens."""


class KnownModel(NamedTuple):
    """What a capture tells of its model; where no sizes are known, what ran of it may be."""

    model: ModelDescription | ModelShape | None
    unknown_because: Text
    """Why there is none, one clause; empty where there is one."""
    notes: tuple[Limit, ...] = ()
    """What was assumed, or contradicts itself."""
    ran: RanModel | None = None


def known_model(run: Mapping[str, object]) -> KnownModel:
    """Return the model of the run table's row: as described, else as its sizes allow."""
    text = run.get("model")
    if isinstance(text, str) and text:
        known = _described(text, run)
        model = known.model
        return _as_it_ran(known, model, run) if isinstance(model, ModelDescription) else known
    shape = model_shape(run)
    if shape is None:
        return KnownModel(None, message("lacks.model_shape"))
    heads, ffn = run.get("num_heads"), run.get("ffn_size")
    if not isinstance(heads, int) or not isinstance(ffn, int) or min(heads, ffn) < 1:
        return KnownModel(shape, "", (message("assumed.dense_model"),))
    return _inferred(shape, heads, ffn)


def _described(text: str, run: Mapping[str, object]) -> KnownModel:
    try:
        fields = json.loads(text)
        if isinstance(fields, dict) and fields.get("per_step") and run.get("tokens_per_step"):
            # Who states tokens and sizes knows more of the model than passes that were given no tokens show.
            fields = {name: value for name, value in fields.items() if name not in _NOTHING_SEEN}
        if isinstance(fields, dict) and ("num_layers" not in fields or fields.get("per_step")):
            return _without_sizes(fields, run)
        model = describe_model(fields)
    except (ConfigError, ValueError, RecursionError) as error:
        what = error.what if isinstance(error, ConfigError) else str(error)
        where = error.where if isinstance(error, ConfigError) else "model"
        return KnownModel(None, message("lacks.model_description", where=where, what=what))
    if model.parameters:
        counted = total_parameters(model)
        if abs(counted / model.parameters - 1.0) > _UNLIKE:
            note = message("doubt.other_parameters", counted=counted, stated=model.parameters)
            return KnownModel(model, "", (note,))
    return KnownModel(model, "")


def _without_sizes(fields: Mapping[str, object], run: Mapping[str, object]) -> KnownModel:
    """Return what ran of a model whose sizes are not known, where that is all of it."""
    split = [axis for axis in ("tp", "pp", "ep", "cp") if (run.get(axis) or 1) != 1]
    if fields.get("complete") and fields.get("ran_products") and not split:
        names = RanModel.__struct_fields__
        ran = msgspec.convert({name: fields[name] for name in names if name in fields}, RanModel)
        note = message("counted.without_sizes", ran=ran.ran_products)
        if ran.per_step:
            note = message("counted.of_steps", ran=ran.ran_products)
        return KnownModel(None, "", (note, *_notes_without_gradients(ran)), ran)
    for name, why in _OPEN.items():
        if fields.get(name):
            return KnownModel(None, why)
    refused = fields.get(REFUSED)
    if refused is not None:
        return KnownModel(None, message("lacks.counted_model", why=message_of_cell(refused)))
    return KnownModel(None, message("lacks.model_shape"))


def _as_it_ran(known: KnownModel, model: ModelDescription, run: Mapping[str, object]) -> KnownModel:
    """Return a model with what was seen to run of it; none where that is needed and not known."""
    split = [axis for axis in ("tp", "pp", "ep") if (run.get(axis) or 1) != 1]
    if split:
        # A rank sees its own part alone, which may have no head.
        model = replace(model, **_NOTHING_SEEN)
        if model.counted:
            return KnownModel(None, message("lacks.whole_model", axes=split))
    if (run.get("cp") or 1) != 1:
        # A rank has its own part of a sequence.
        model = replace(model, ran_keys=0.0, ran_attention=0.0)
    if (doubt := _doubt(model)) is not None:
        return KnownModel(None, doubt)
    notes = (
        *known.notes,
        *_counted_notes(model),
        *_ran_notes(model),
        *_notes_without_gradients(model),
    )
    return KnownModel(model, "", notes)


def _doubt(model: ModelDescription) -> Message | None:
    """Return why neither what ran nor sizes tell the FLOPs, None where they do."""
    if model.ran_products:
        unseen = model.counted and not model.ran_attention
        return message("lacks.attention") if unseen and not model.complete else None
    for name, why in _OPEN.items():
        if getattr(model, name):
            return why
    if model.mixed:
        return message("lacks.attention_of_several")
    if model.frozen:
        return message("lacks.frozen_weights")
    if model.headless:
        return message("lacks.output_head")
    return None if _fits_what_was_seen(model) else message("lacks.seen_like_sizes", **_seen(model))


def _seen(model: ModelDescription) -> dict[str, float]:
    return {"seen": model.seen_products, "sizes": float(products_of_sizes(model))}


def _fits_what_was_seen(model: ModelDescription) -> bool:
    """Return whether sizes give the products that were seen, and once each weight that was not.

    Of experts in one tensor, a token does not pass all.
    """
    if not model.seen_products and not model.unseen_weights:
        return True
    sizes, both = products_of_sizes(model), model.seen_products + model.unseen_weights
    return any(abs(both - idle - sizes) <= _UNLIKE * sizes for idle in (0, idle_parameters(model)))


def _counted_notes(model: ModelDescription) -> tuple[Limit, ...]:
    if not model.counted:
        return ()
    note = message(
        "assumed.counted_model",
        layers=model.num_layers,
        width=model.hidden_size,
        heads=model.num_heads,
        tokens=model.vocab_size,
    )
    return (note,) if model.ran_products else (note, message("assumed.runs_once"))


def _ran_notes(model: ModelDescription) -> tuple[Limit, ...]:
    sizes = products_of_sizes(model)
    if not model.ran_products or abs(model.ran_products / sizes - 1.0) <= _UNLIKE:
        return ()
    return (message("counted.as_it_ran", ran=model.ran_products, sizes=float(sizes)),)


def _notes_without_gradients(model: ModelDescription | RanModel) -> tuple[Limit, ...]:
    if model.ran_products:
        share = model.ran_without / (model.ran_products + model.ran_attention)
    else:
        rows = model.forward_rows if isinstance(model, ModelDescription) else 0.0
        share = rows / (rows + _FORWARDS)
    return (message("assumed.passes_without_gradients", share=share),) if share > _FEW else ()


def _inferred(shape: ModelShape, heads: int, ffn: int) -> KnownModel:
    try:
        sizes = ModelDescription(
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            num_heads=heads,
            head_dim=1,
            ffn_size=ffn,
            vocab_size=shape.vocab_size,
            seq_len=shape.seq_len,
        )
    except ConfigError as error:
        why = message("lacks.usable_shape", where=error.where, what=error.what)
        return KnownModel(None, why)
    found = inferred_models(sizes, shape.parameters)
    flops = [flops_of_description(model) for model in found]
    if not found:
        return KnownModel(None, message("lacks.dense_model", parameters=shape.parameters))
    if max(flops) > (1.0 + _SAME) * min(flops):
        return KnownModel(None, message("lacks.one_model"))
    return KnownModel(found[0], "")


def model_shape(run: Mapping[str, object]) -> ModelShape | None:
    """Return the sizes in the run table, None if a part of them is not known."""
    values = {name: run.get(name) for name in ModelShape.__struct_fields__}
    if any(not isinstance(value, int) or isinstance(value, bool) for value in values.values()):
        return None
    return ModelShape(**values)  # type: ignore[arg-type]


def head_in_layers(run: Mapping[str, object]) -> float | None:
    """Return how many transformer layers the output head is worth, None if the shape is unknown.

    By FLOPs: those of the head over those of a middle layer. Of sizes alone, a token multiplies
    ``2 h V`` in the head and ``8 h^2 + 4 h f + 4 h T`` in a layer (f is 4 h if not known).
    """
    model = known_model(run).model
    if isinstance(model, ModelDescription):
        return head_flops(model) / layer_flops(model, model.num_layers // 2)
    shape = model or model_shape(run)
    if shape is None or min(shape.hidden_size, shape.seq_len) < 1:
        return None
    width, ffn = shape.hidden_size, run.get("ffn_size")
    ffn_size = ffn if isinstance(ffn, int) and ffn > 0 else 4 * width
    layer = 8 * width**2 + 4 * width * ffn_size + 4 * width * shape.seq_len
    return 2 * width * shape.vocab_size / layer


def flops_per_token(
    model: ModelDescription | ModelShape | RanModel,
    convention: str = DEFAULT_CONVENTION,
    keys_per_token: float | None = None,
) -> float:
    """Return the model FLOPs of training on one token.

    Args:
        model: A description, sizes alone, or what ran.
        convention: A name of ``CONVENTIONS``.
        keys_per_token: Of packed documents, ``sum(L^2) / sum(L)``; None: whole sequences.

    Raises:
        KeyError: There is no such convention, or it needs sizes.
    """
    if isinstance(model, RanModel):
        return _flops_of_ran(model, keys_per_token)[convention]
    if isinstance(model, ModelDescription):
        return flops_of_description(model, convention, keys_per_token)
    seen = float(model.seq_len) if keys_per_token is None else keys_per_token
    attention = 12.0 * model.num_layers * model.hidden_size * seen
    products = 6.0 * (model.parameters - model.vocab_size * model.hidden_size)
    return {
        "nonembedding": products + attention,
        "causal": products + attention / 2,
        "palm": 6.0 * model.parameters + attention,
        "no_attention": products,
    }[convention]


def conventions_of(model: ModelDescription | ModelShape | RanModel) -> tuple[str, ...]:
    """Return the names of the conventions by which a model is counted: a mask and parameters need its sizes."""
    if isinstance(model, RanModel):
        return tuple(_flops_of_ran(model, None))
    return tuple(CONVENTIONS if isinstance(model, ModelShape) else described_conventions(model))


def _flops_of_ran(model: RanModel, keys_per_token: float | None) -> dict[str, float]:
    known = keys_per_token is not None and model.ran_keys > 0
    longer = (keys_per_token or 0.0) / model.ran_keys if known else 1.0
    products = 6.0 * model.ran_products
    return {
        DEFAULT_CONVENTION: products + 6.0 * model.ran_attention * longer,
        "no_attention": products,
    }
