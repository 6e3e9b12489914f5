"""What the outermost forward calls of training tell: the model's configuration, and its tokens.

Models of transformers, picotron and torchtitan carry their configuration, under any wrapper; of others the
modules are counted. Token ids are the integer input
of two dimensions; its size is what this rank trains on. Nothing is imported for it.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any

from ..compat.batched import is_batched_inside
from ..schema.errors import ConfigError
from ..schema.message import Message, message, message_to_cell
from ..schema.model import ModelDescription
from ..schema.model.fields import model_fields
from .model_modules import fields_of_modules
from .module_products import doubts_of

_STAGE_MODULE = "torch.distributed.pipelining.stage"
_WRAPPED = ("module", "_orig_mod", "_fsdp_wrapped_module", "model")
"""Attributes by which wrappers hold the module that they wrap."""
_CONFIGURATIONS = ("config", "model_config", "model_args")
"""Attributes of a model: of transformers, of picotron, and, last, of torchtitan."""
_MULTI_TOKEN = ("mtp", "nextn")
"""What names of such layers hold."""
_IDS_DIM = 2
"""Sequences, and tokens of each."""
_MOST_WRAPPERS = 6
"""One more than compile, FSDP, DDP and two of a framework; it also ends at wrappers that hold
themselves."""

Learn = Callable[[Mapping[str, Any]], None]


class ModelWatch:
    """Counts the tokens of the forward calls of a step; learns the model at the first of them.

    Args:
        learn: Told the facts.
        is_whole: Whether a module is a whole model, whose modules may be counted; a pipeline stage is not.

    Attributes:
        length: Tokens of each sequence that the last call was given.
    """

    def __init__(self, learn: Learn, *, is_whole: bool = True) -> None:
        self._learn = learn
        self._is_whole = is_whole
        self.length = self._first_length = 0
        self._are_unlike = False
        self._microbatch, self._work = (-1, -1), (0, 0)
        self._is_described = False

    def tokens(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """Return the tokens of a forward call of training, 0 where it is given no token ids."""
        ids: Any = kwargs.get("input_ids")
        if ids is None:
            ids = args[0] if args else _ids_of(kwargs)
        if isinstance(ids, dict | UserDict):
            ids = _ids_of(ids)
        try:
            # Few looks: each costs a microsecond where training has emptied the caches.
            if ids.dim() != _IDS_DIM or ids.is_floating_point() or not module.training:
                return 0
        except AttributeError:  # no tensor
            return 0
        if is_batched_inside(ids):
            return 0  # One of many at a time: how many is not to be seen.
        self.length = int(ids.shape[1])
        if not self._is_described:
            self._is_described = True
            self._first_length = self.length
            self._tell(module, self.length)
        return int(ids.numel())

    def unlike_work(self, step: int, microbatch: int, tokens: int) -> tuple[int, int] | None:
        """Return the tokens of a microbatch so far, and the sum of their squared lengths.

        None while all sequences have the length of the first: the description has it.

        Args:
            step: The step of the last call that ``tokens`` was told of.
            microbatch: Its microbatch; several calls may have the same.
            tokens: What that call was given.
        """
        if self._microbatch != (step, microbatch):
            self._microbatch, self._work = (step, microbatch), (0, 0)
        before, squares = self._work
        self._work = before + tokens, squares + tokens * self.length
        self._are_unlike |= self.length != self._first_length
        return self._work if self._are_unlike else None

    def _tell(self, module: Any, length: int) -> None:
        config = config_of(module)
        fields: dict[str, Any] | None
        try:
            if config is not None:
                fields = _fields_of(config, module, length)
            else:
                fields = fields_of_modules(module, length) if self._is_whole else None
            if fields is not None:
                ModelDescription.from_fields(fields)
                self._learn({"model": fields})
                # A stage infers its shapes by a call before any schedule is known; most have no head.
                is_whole = self._is_whole and _STAGE_MODULE not in sys.modules
                if is_whole and (doubts := doubts_of(module)):
                    self._learn({"observed": doubts})
        except ConfigError as error:
            # A model that no formula counts: its MFU stays unknown, and why.
            what = error.said["what"]
            if isinstance(what, Message):
                self._learn({"model_refused": message_to_cell(what)})


def _ids_of(batch: Mapping[str, Any]) -> Any:
    """Return the token ids of a batch by names; None without any, with unlike sizes, or beside floats.

    Masks and labels are integers of the size of the ids. Floats beside them may be the logits of a loss.
    """
    if (named := batch.get("input_ids")) is not None:
        return named
    sized = [own for own in batch.values() if getattr(own, "ndim", 0) >= _IDS_DIM]
    is_clear = len({own.shape for own in sized}) == 1
    return sized[0] if is_clear and not any(own.is_floating_point() for own in sized) else None


def _fields_of(config: Any, module: Any, length: int) -> dict[str, object]:
    """Return the fields.

    Raises:
        ConfigError: No formula counts it. A classifier's configuration may be that of the decoder it began as.
    """
    from ..schema.model.hugging_face import OTHER_HEADS

    modules = getattr(module, "modules", None)
    for own in modules() if modules else ():
        if (name := type(own).__name__).endswith(OTHER_HEADS):
            raise ConfigError(
                message("refused.other_head"),
                where=name,
                remedy=message("advice.state_sizes_under_model"),
            )
    fields = {**model_fields(config), "seq_len": length}
    if not _predicts_more_tokens(module):
        fields.pop("mtp_layers", None)
    return fields


def _predicts_more_tokens(module: Any) -> bool:
    """Return whether a model has layers of multi-token prediction: classes of transformers leave them out."""
    named = getattr(module, "named_modules", None)
    names = (name for name, _ in named()) if named is not None else ()
    return any(part in name.lower() for name in names for part in _MULTI_TOKEN)


def config_of(module: Any) -> Any:
    """Return the configuration of a model inside wrappers, None where there is none."""
    for _ in range(_MOST_WRAPPERS):
        for name in _CONFIGURATIONS:
            config = getattr(module, name, None)
            if isinstance(getattr(config, "model_type", None), str) and hasattr(config, "to_dict"):
                return config
        if hasattr(config, "dim") and hasattr(config, "n_layers"):
            return config
        inner = (getattr(module, name, None) for name in _WRAPPED)
        module = next((held for held in inner if held is not None), None)
        if module is None:
            return None
    return None
