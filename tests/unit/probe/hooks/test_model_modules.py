"""Decoders of several makes, counted from their modules and held against their sizes."""

import pytest
import torch
from torch import nn

from meshscope.probe.hooks.model_modules import fields_of_modules
from meshscope.probe.schema.model import ModelDescription, flops_per_token

SEQ_LEN = 512
SIZES = {"num_layers": 3, "hidden_size": 64, "num_heads": 4, "vocab_size": 1000, "seq_len": SEQ_LEN}


class Attention(nn.Module):
    """As nanoGPT's: one matrix for queries, keys and values."""

    def __init__(self, width, heads, kv_heads=None):
        """Make its matrices; with fewer key heads, one for each of the three."""
        super().__init__()
        self.n_head = heads
        if kv_heads is None:
            self.c_attn = nn.Linear(width, 3 * width)
        else:
            kv = width // heads * kv_heads
            self.q, self.k, self.v = (nn.Linear(width, out, bias=False) for out in (width, kv, kv))
        self.c_proj = nn.Linear(width, width)


class Layer(nn.Module):
    """Attention and an MLP, plain or gated."""

    def __init__(self, width=64, heads=4, kv_heads=None, ffn=256, *, gated=False):
        """Make both."""
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads, kv_heads)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)
        if gated:
            self.gate = nn.Linear(width, ffn)


class Decoder(nn.Module):
    """Token and position embeddings, layers, a norm and a head."""

    def __init__(self, make=Layer, *, tied=False, layers=3):
        """Make all."""
        super().__init__()
        self.wte, self.wpe = nn.Embedding(1000, 64), nn.Embedding(SEQ_LEN, 64)
        self.h = nn.ModuleList(make() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 1000, bias=False)
        if tied:
            self.head.weight = self.wte.weight


def counted_flops(model):
    """Return the FLOPs of a token by the modules."""
    return flops_per_token(ModelDescription.from_fields(fields_of_modules(model, SEQ_LEN)))


def test_layers_that_share_weights_count_as_often_as_they_run():
    """Fails when a model that runs one layer six times has a sixth of its MFU."""
    shared = Layer()
    assert counted_flops(Decoder(lambda: shared, layers=6)) == counted_flops(Decoder(layers=6))


def test_attention_of_another_width_is_left_open():
    """Fails when heads that are wider than the model, as in Qwen3, count as ones that are not."""

    def wide():
        layer = Layer()
        layer.attention.c_attn = nn.Linear(64, 3 * 128)
        layer.attention.c_proj = nn.Linear(128, 64)
        return layer

    assert fields_of_modules(Decoder(wide), SEQ_LEN) is None


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (Decoder(), {}),
        (Decoder(tied=True), {"tied": True}),
        (Decoder(lambda: Layer(kv_heads=2, ffn=176, gated=True)), {"kv_heads": 2, "ffn_size": 176, "gated": True}),
        (Decoder(lambda: Layer(ffn=512)), {"ffn_size": 512}),
        (nn.Sequential(Decoder()), {}),
    ],
    ids=["plain", "tied", "llama", "wide", "wrapped"],
)  # fmt: skip
def test_products_are_those_of_the_sizes(model, fields):
    """Fails when MFU counts another model than the one that is trained."""
    expected = flops_per_token(ModelDescription(**{**SIZES, **fields}))
    assert counted_flops(model) == pytest.approx(expected, rel=1e-9)


def test_layers_of_torch_are_counted():
    """Fails when the matrix inside of ``nn.MultiheadAttention`` is overlooked: it is no module."""
    model = Decoder(lambda: nn.TransformerEncoderLayer(64, 4, 256))
    assert counted_flops(model) == flops_per_token(ModelDescription(**SIZES))


class Experts(nn.Module):
    """Several MLPs, of which a token passes some."""

    def __init__(self):
        """Make four of them."""
        super().__init__()
        self.attention = Attention(64, 4)
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))


class Raw(nn.Module):
    """A layer with a matrix that is no module."""

    def __init__(self):
        """Make it."""
        super().__init__()
        self.attention = Attention(64, 4)
        self.weight = nn.Parameter(torch.zeros(64, 64))


def uneven():
    """Return a decoder whose layers differ."""
    model = Decoder()
    model.h[1] = Layer(ffn=512)
    return model


def sharded():
    """Return a decoder whose matrices are flat, as FSDP holds them."""
    model = Decoder()
    for layer in model.h:
        layer.up.weight = nn.Parameter(torch.zeros(10))
    return model


def headless():
    """Return a decoder without a head."""
    model = Decoder()
    del model.head
    return model


@pytest.mark.parametrize(
    "model",
    [
        Decoder(Experts),
        Decoder(Raw),
        Decoder(lambda: nn.Linear(64, 64)),
        uneven(),
        sharded(),
        headless(),
        nn.Sequential(Decoder(), nn.Conv2d(3, 3, 3)),
        nn.Sequential(Decoder(), nn.Linear(64, 5000)),
        nn.Linear(4, 4),
    ],
    ids=[
        "experts",
        "raw",
        "no-heads",
        "uneven",
        "sharded",
        "headless",
        "vision",
        "second-head",
        "no-model",
    ],
)
def test_what_leaves_something_open_is_not_counted(model):
    """Fails when MFU is reported of a model that the modules do not show."""
    assert fields_of_modules(model, SEQ_LEN) is None
