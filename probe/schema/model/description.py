"""The description of a decoder transformer: sizes that fix its parameters and its FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields

from ...schema.message import Message, message
from ..errors import ConfigError
from .stated import MOST, MOST_LAYERS


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A decoder transformer, as its configuration states it.

    Sizes are of the whole model, before any parallel axis splits it. A 0 means "as usual" where
    the field says so, else that the model has no such part.
    """

    num_layers: int
    """Transformer layers, those of multi-token prediction left out."""
    hidden_size: int
    """Width of the residual stream."""
    num_heads: int
    """Attention heads of the queries."""
    vocab_size: int
    """Rows of the embedding and of the output head, padding included."""
    seq_len: int
    """Tokens of one training sequence."""
    ffn_size: int = 0
    """Width inside the MLP of a dense layer; 0: 4 x hidden, or none where all layers have experts."""
    kv_heads: int = 0
    """Heads of keys and values (grouped-query attention); 0: as many as ``num_heads``."""
    head_dim: int = 0
    """Width of a head; 0: hidden / heads."""
    gated: bool = False
    """The MLP has three matrices (SwiGLU, GeGLU) instead of two."""
    tied: bool = False
    """The output head is the embedding: one parameter, and still a matrix product."""
    experts: int = 0
    """Routed experts of a layer; 0: all layers are dense."""
    experts_per_token: int = 0
    """Routed experts that a token passes (top-k)."""
    expert_ffn_size: int = 0
    """Width inside one routed expert; 0: ``ffn_size``."""
    shared_ffn_size: int = 0
    """Width of all shared experts of a layer together; every token passes them."""
    dense_layers: tuple[int, ...] = ()
    """Layers, counted from 0, that have a dense MLP although the model has experts."""
    q_lora_rank: int = 0
    """Multi-head latent attention: rank of the queries; 0: they are projected in full."""
    kv_lora_rank: int = 0
    """Multi-head latent attention: rank of keys and values; 0: this is no latent attention."""
    qk_nope_head_dim: int = 0
    """Of latent attention: part of a head of queries and keys without positions."""
    qk_rope_head_dim: int = 0
    """Of latent attention: part of a head with rotary positions; keys share it among heads."""
    v_head_dim: int = 0
    """Width of a head of values; 0: ``head_dim``."""
    window: int = 0
    """Keys that a token of a windowed layer sees (sliding-window attention); 0: all before it."""
    windowed_layers: tuple[int, ...] | None = None
    """Layers, counted from 0, that have the window; None: all, where there is one."""
    chunked: bool = False
    """The window begins anew after so many tokens (chunked attention), instead of moving with each token."""
    mtp_layers: int = 0
    """Layers of multi-token prediction: each has a layer, a projection and the head once more."""
    learned_positions: int = 0
    """Rows of a learned position embedding."""
    norm_shift: bool = False
    """Norms have a shift beside their scale (LayerNorm instead of RMSNorm)."""
    norms_per_layer: int = 2
    """Norms of the model's width in a layer."""
    qk_norm: bool = False
    """Queries and keys have a norm of a head's width."""
    qkv_bias: bool = False
    """The projections to queries, keys and values have biases."""
    out_bias: bool = False
    """The projection after attention has a bias."""
    mlp_bias: bool = False
    """The matrices of MLPs have biases, those of routed experts and the router too."""
    counted: bool = False
    """The sizes were counted from the live modules of one rank: products are exact, the shape of the MLP is not."""
    parameters: int = 0
    """All parameters, where that is stated; 0: they are counted from the sizes."""
    ran_products: float = 0.0
    """Weights that a token multiplied in training, as the probe saw it: FLOPs / 6; 0: as the sizes say."""
    ran_layers: float = 0.0
    """Layers that a token passed in training, a third each for the forward pass and two gradients; 0: all."""
    ran_keys: float = 0.0
    """Keys of its own sequence that a token had on average where it was seen to run; 0: ``seq_len``."""
    ran_attention: float = 0.0
    """Multiply-adds of a token with other tokens, over all layers, as ``ran_layers`` counts; 0: as the sizes say."""
    seen_products: float = 0.0
    """Weights that a token multiplied in forward passes, where others multiply unseen; 0: nothing was seen."""
    unseen_weights: float = 0.0
    """Weights whose products were not seen, beside ``seen_products``."""
    mixed: bool = False
    """Layers of unlike widths ran, and their attention was not seen."""
    frozen: bool = False
    """Weights have no gradient: the products of training are not those of the sizes."""
    headless: bool = False
    """No module over the vocabulary was seen: an output head is not known to run."""
    varies: bool = False
    """Two steps were seen to multiply unlike amounts a token."""
    uncounted: bool = False
    """Functions were seen to multiply in ways that are not counted."""
    complete: bool = False
    """What ran is all of it: no function was met that could multiply unseen."""
    per_step: bool = False
    """What ran is counted for a step of one rank: it was given no tokens."""
    partial: bool = False
    """Passes ran of which nothing was seen, or not all."""
    unmet: bool = False
    """Passes recorded gradients that no backward pass took."""
    ran_without: float = 0.0
    """Of ``ran_products`` and ``ran_attention``, the part of passes without gradients."""
    forward_rows: float = 0.0
    """Rows of passes without gradients of the trained model, a token of training; 0: few."""
    other_passes: bool = False
    """Passes without gradients ran of other models."""

    def __post_init__(self) -> None:
        """Fill in what the sizes imply, and refuse what no model can be.

        Raises:
            ConfigError: A size is missing, negative, or contradicts another one.
        """
        for name in ("num_layers", "hidden_size", "num_heads", "vocab_size", "seq_len"):
            _require(
                getattr(self, name) >= 1,
                name,
                message("refused.below_least", least=1),
                message("advice.its_size"),
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) in (int, float):
                in_range = 0 <= value <= MOST
                _require(
                    in_range,
                    field.name,
                    message("refused.value_no_size", value=value),
                    message("advice.write_at_least", least=0),
                )
        for name in ("num_layers", "mtp_layers"):
            count = getattr(self, name)
            text = message("refused.too_many", count=count)
            _require(
                count <= MOST_LAYERS, name, text, message("advice.write_at_most", most=MOST_LAYERS)
            )
        self._fill_in_heads()
        self._fill_in_mlp()
        for name in ("dense_layers", "windowed_layers"):
            chosen = getattr(self, name) or ()
            inside = all(0 <= layer < self.num_layers for layer in chosen)
            text = message("refused.layer_outside", last=self.num_layers - 1)
            _require(inside, name, text, message("advice.layers_counted_from_0"))

    def _fill_in_heads(self) -> None:
        put = object.__setattr__
        if self.kv_lora_rank:
            dim = self.qk_nope_head_dim + self.qk_rope_head_dim
            text = message("refused.latent_attention")
            remedy = message("advice.write_latent_widths")
            _require(dim > 0 and self.v_head_dim > 0, "kv_lora_rank", text, remedy)
            put(self, "head_dim", dim)
        if not self.head_dim:
            divides = self.hidden_size % self.num_heads == 0
            text = message("refused.heads_of_width", heads=self.num_heads, width=self.hidden_size)
            _require(divides, "num_heads", text, message("advice.write_field", name="head_dim"))
            put(self, "head_dim", self.hidden_size // self.num_heads)
        put(self, "kv_heads", self.kv_heads or self.num_heads)
        put(self, "v_head_dim", self.v_head_dim or self.head_dim)
        text = message("refused.kv_heads", kv_heads=self.kv_heads, heads=self.num_heads)
        _require(
            self.num_heads % self.kv_heads == 0,
            "kv_heads",
            text,
            message("advice.divisor_of_num_heads"),
        )

    def _fill_in_mlp(self) -> None:
        put = object.__setattr__
        if self.experts:
            text = message(
                "refused.experts_per_token", count=self.experts_per_token, experts=self.experts
            )
            fits = 1 <= self.experts_per_token <= self.experts
            _require(fits, "experts_per_token", text, message("advice.experts_of_token"))
            put(self, "expert_ffn_size", self.expert_ffn_size or self.ffn_size)
            text = message("refused.no_expert_width")
            remedy = message("advice.write_field", name="expert_ffn_size")
            _require(self.expert_ffn_size > 0, "expert_ffn_size", text, remedy)
            text = message("refused.no_dense_width")
            remedy = message("advice.write_field", name="ffn_size")
            _require(not self.dense_layers or self.ffn_size > 0, "ffn_size", text, remedy)
        else:
            alone = self.experts_per_token + self.expert_ffn_size + self.shared_ffn_size
            text = message("refused.size_of_no_experts")
            _require(
                not alone and not self.dense_layers,
                "experts",
                text,
                message("advice.write_field", name="experts"),
            )
            put(self, "ffn_size", self.ffn_size or 4 * self.hidden_size)

    @classmethod
    def from_fields(cls, values: Mapping[str, object], where: str = "model") -> ModelDescription:
        """Return the description that fields by name state.

        ``dense_layers`` may be a number: so many first layers. Numbers may be written as floats
        that are whole, such as ``1e6``.

        Raises:
            ConfigError: A field is unknown, missing, of another type or impossible.
        """
        given = {name: value for name, value in values.items() if value is not None}
        read = {name: checked_value(name, value, where) for name, value in given.items()}
        needed = [field.name for field in fields(cls) if field.default is MISSING]
        missing = [name for name in needed if name not in given]
        if missing:
            raise ConfigError(
                message("refused.fields_missing", names=missing),
                where=where,
                remedy=message("advice.sizes_of_model"),
            )
        try:
            return cls(**read)  # type: ignore[arg-type]
        except ConfigError as error:
            raise ConfigError(
                error.said["what"], where=f"{where}.{error.where}", remedy=error.said["remedy"]
            ) from None


def checked_value(name: str, value: object, where: str) -> object:
    """Return the value of a field, of its type.

    Raises:
        ConfigError: There is no such field, or the value does not fit it.
    """
    known = {field.name: field for field in fields(ModelDescription)}
    if name not in known:
        remedy = message("advice.use", known=list(known))
        raise ConfigError(message("refused.unknown_field", name=name), where=where, remedy=remedy)
    if known[name].type == "bool":
        if isinstance(value, bool):
            return value
        remedy = message("advice.true_or_false", name=name)
        raise ConfigError(
            message("refused.no_boolean", value=value), where=f"{where}.{name}", remedy=remedy
        )
    if name in ("dense_layers", "windowed_layers"):
        return _layers(name, value, where)
    if known[name].type == "float" and isinstance(value, int | float):
        return _amount(name, value, where)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= MOST:
        what = message("refused.value_no_size", value=value)
        raise ConfigError(
            what, where=f"{where}.{name}", remedy=message("advice.write_whole_number")
        )
    return value


def _amount(name: str, value: float, where: str) -> float:
    if isinstance(value, bool) or not 0 <= value <= MOST:
        what, remedy = (
            message("refused.value_no_size", value=value),
            message("advice.write_at_least", least=0),
        )
        raise ConfigError(what, where=f"{where}.{name}", remedy=remedy)
    return float(value)


def _layers(name: str, value: object, where: str) -> tuple[int, ...]:
    if type(value) is int and 0 <= value <= MOST:
        return tuple(range(min(value, 1 << 20)))
    if isinstance(value, list | tuple) and all(type(layer) is int for layer in value):
        return tuple(sorted(set(value)))
    remedy = message("advice.list_of_layers_or_count", name=name)
    raise ConfigError(
        message("refused.value_no_layers", value=value), where=f"{where}.{name}", remedy=remedy
    )


def _require(holds: bool, where: str, what: Message, remedy: Message) -> None:  # noqa: FBT001
    if not holds:
        raise ConfigError(what, where=where, remedy=remedy)
