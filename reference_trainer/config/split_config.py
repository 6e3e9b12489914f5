"""Settings of the axes that split a layer or a sequence, and what they must divide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message

from .checks import in_range, require


class ModelSizes(Protocol):
    """What of a model is split over ranks."""

    @property
    def heads(self) -> int:
        """Return the attention heads."""

    @property
    def ffn(self) -> int:
        """Return the width inside the MLP."""

    @property
    def vocab(self) -> int:
        """Return the rows of the embedding."""

    @property
    def seq_len(self) -> int:
        """Return the tokens of a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorConfig:
    """How the tensor-parallel ranks share a layer."""

    sequence_parallel: bool = False
    """Split norms, residuals and dropout over the tokens too: reduce-scatters and all-gathers
    take the place of the all-reduces, and activations between layers shrink by layout.tp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """How the context-parallel ranks share a sequence."""

    form: Literal["ring", "all_to_all"] = "ring"
    """``ring`` passes keys and values around while it computes; ``all_to_all`` exchanges tokens
    for heads before attention and back after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeConfig:
    """Experts in place of the MLP of every block."""

    experts: int = 0
    """Experts of a block; 0: one dense MLP."""
    experts_per_token: int = 2
    """Experts that each token is sent to."""
    capacity_factor: float = 0.0
    """Most tokens that one rank sends to an expert, over its even share; what is above is
    dropped. 0: nothing is dropped, and ranks exchange as many tokens as the router says."""
    balance_weight: float = 0.01
    """Weight of the loss that makes the router spread tokens evenly."""

    def __post_init__(self) -> None:
        """Validate the counts.

        Raises:
            ConfigError: A count or a weight is out of range.
        """
        for name in ("experts", "capacity_factor", "balance_weight"):
            in_range(getattr(self, name), 0, where=f"moe.{name}")
        require(
            self.experts_per_token >= 1 and (not self.experts or self.experts >= self.chosen),
            message(
                "refused.experts_of_token",
                experts_per_token=self.experts_per_token,
                experts=self.experts,
            ),
            where="moe.experts_per_token",
            remedy=message("advice.fewer_experts_of_token"),
        )

    @property
    def chosen(self) -> int:
        """Return the MLPs that a token passes in a block."""
        return self.experts_per_token if self.experts else 1


def check_splits(
    layout: ParallelLayout,
    model: ModelSizes,
    *,
    tensor: TensorConfig,
    context: ContextConfig,
    moe: MoeConfig,
) -> None:
    """Validate that the mesh divides the model.

    Raises:
        ConfigError: A size is not a multiple of what splits it.
    """
    for name in ("heads", "ffn", "vocab"):
        _divides(f"model.{name}", getattr(model, name), layout.tp, "layout.tp")
    _check_tokens(layout, model, tensor, context)
    if context.form == "all_to_all":
        _divides("model.heads", model.heads, layout.tp * layout.cp, "layout.tp x layout.cp")
    replicas = layout.dp * layout.cp
    require(
        replicas % layout.ep == 0,
        message("refused.ep_over_replicas", ep=layout.ep, replicas=replicas),
        where="layout.ep",
        remedy=message("advice.divisor_for_experts"),
    )
    require(
        layout.ep == 1 or moe.experts > 0,
        message("refused.no_experts_to_share", ep=layout.ep),
        where="layout.ep",
        remedy=message("advice.multiple_of_experts"),
    )
    _divides("moe.experts", moe.experts, layout.ep, "layout.ep")


def _check_tokens(
    layout: ParallelLayout, model: ModelSizes, tensor: TensorConfig, context: ContextConfig
) -> None:
    """Validate that every rank gets as many tokens of a sequence as any other."""
    zigzag = 2 if layout.cp > 1 and context.form == "ring" else 1
    parts, name = layout.cp * zigzag, "2 x layout.cp" if zigzag == 2 else "layout.cp"
    if tensor.sequence_parallel:
        require(
            layout.tp > 1,
            message("refused.tokens_over_one_rank"),
            where="tensor.sequence_parallel",
            remedy=message("advice.tp_or_no_split"),
        )
        parts, name = parts * layout.tp, f"{name} x layout.tp"
    _divides("model.seq_len", model.seq_len, parts, name)


def _divides(field: str, value: int, parts: int, parts_name: str) -> None:
    require(
        value % parts == 0,
        message("refused.not_a_multiple", value=value, parts_name=parts_name, parts=parts),
        where=field,
        remedy=message("advice.change_one"),
    )
