"""What forward calls tell of model and tokens; the configuration is a plain object of the same form."""

from collections import UserDict
from types import SimpleNamespace

import pytest
import torch

from meshscope.probe.hooks.model_watch import ModelWatch

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
IDS = torch.zeros((3, 32), dtype=torch.int64)


def wrapped(config, depth=2, *, training=True):
    """Return a module with a configuration, inside wrappers."""
    given = SimpleNamespace(model_type=config.get("model_type"), to_dict=lambda: config)
    module = SimpleNamespace(config=given, training=training)
    for _ in range(depth):
        module = SimpleNamespace(module=module, training=training)
    return module


def test_model_and_tokens_are_reported_once_and_every_time():
    """MFU would be unknown in every run of transformers."""
    reported = []
    watch = ModelWatch(reported.append)
    module = wrapped(CONFIG)
    assert [watch.tokens(module, (), {"input_ids": IDS}) for _ in range(2)] == [96, 96]
    assert watch.tokens(module, (IDS[:1],), {}) == 32
    (facts,) = reported
    assert facts["model"]["seq_len"] == 32
    assert facts["model"]["kv_heads"] == 2


LOGITS = torch.zeros((3, 32, 256))


@pytest.mark.parametrize(
    ("args", "named", "tokens"),
    [
        (({"input_ids": IDS, "labels": IDS[:, 1:]},), {}, 96),
        ((UserDict(tokens=IDS, mask=IDS > 0),), {}, 96),
        ((), {"idx": IDS, "targets": IDS}, 96),
        ((), {"src": IDS, "tgt": IDS[:, 1:]}, 0),
        ((), {"logits": LOGITS, "labels": IDS}, 0),
        (({"pixels": LOGITS},), {}, 0),
        (({},), {}, 0),
    ],
    ids=["dict", "user dict", "other names", "two sequences", "a loss", "images", "nothing"],
)
def test_token_ids_are_found_in_a_batch_by_names(args, named, tokens):
    """MFU would be unknown of a model that takes its batch whole, or count the targets of a loss."""
    assert ModelWatch(lambda _: None).tokens(wrapped(CONFIG), args, named) == tokens


@pytest.mark.parametrize(
    ("args", "training"),
    [
        ((torch.zeros(3, 32),), True),
        ((IDS[0],), True),
        ((IDS,), False),
        (("text",), True),
        ((), True),
    ],
    ids=["floats", "one dimension", "evaluation", "text", "nothing"],
)
def test_what_is_no_batch_of_training_has_no_tokens(args, training):
    """Evaluation, targets of a loss or hidden states would count as tokens."""
    reported = []
    assert ModelWatch(reported.append).tokens(wrapped(CONFIG, training=training), args, {}) == 0
    assert not reported


class LlamaForSequenceClassification(torch.nn.Module):
    """A classifier whose configuration is that of the decoder that it began as."""

    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(model_type="llama", to_dict=lambda: CONFIG)


def test_a_classifier_tells_its_tokens_and_why_no_formula_counts_it():
    """A head over the vocabulary would count that it does not have, or its MFU be unknown without a reason."""
    reported = []
    wrapped = torch.nn.ModuleList([LlamaForSequenceClassification()])
    wrapped.module = wrapped[0]
    assert ModelWatch(reported.append).tokens(wrapped, (IDS,), {}) == 96
    assert [list(facts) for facts in reported] == [["model_refused"]]
    assert "refused.other_head" in reported[0]["model_refused"]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "mamba", "state_size": 16}, ["refused.no_attention"]),
        ({"model_type": "t5", "d_model": 8}, ["refused.family_not_known"]),
        ({}, []),
    ],
)
def test_a_model_that_no_formula_counts_tells_why(config, why):
    """A guess would be a wrong MFU, and without a reason nobody knows what to state."""
    reported = []
    assert ModelWatch(reported.append).tokens(wrapped(config), (IDS,), {}) == 96
    assert [told["model_refused"].split()[0] for told in reported] == why


def test_a_model_of_picotron_tells_its_configuration():
    """MFU would be unknown where the configuration has another name on the module."""
    reported = []
    given = SimpleNamespace(model_type="llama", to_dict=lambda: CONFIG)
    module = SimpleNamespace(module=SimpleNamespace(model_config=given), training=True)
    assert ModelWatch(reported.append).tokens(module, (IDS,), {}) == 96
    assert reported[0]["model"]["num_layers"] == 2


def test_a_model_of_torchtitan_tells_its_arguments():
    """MFU would be unknown in every run of torchtitan."""
    reported = []
    arguments = SimpleNamespace(
        dim=64, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=256, multiple_of=32
    )
    module = SimpleNamespace(model_args=arguments, training=True)
    assert ModelWatch(reported.append).tokens(module, (IDS,), {}) == 96
    model = reported[0]["model"]
    # Two thirds of 256, up to the next multiple of 32.
    assert (model["ffn_size"], model["kv_heads"], model["seq_len"]) == (192, 2, 32)


def test_arguments_of_a_model_that_is_not_known_tell_tokens_alone():
    """Layers of which every second has experts would count as if all were dense."""
    reported = []
    arguments = SimpleNamespace(
        dim=64, n_layers=2, n_heads=4, vocab_size=256, interleave_moe_layer_step=2
    )
    module = SimpleNamespace(model_args=arguments, training=True)
    assert ModelWatch(reported.append).tokens(module, (IDS,), {}) == 96
    assert [told.keys() for told in reported] == [{"model_refused"}]


@pytest.mark.parametrize(("name", "layers"), [("mtp", 1), ("other", 0)])
def test_layers_of_multi_token_prediction_count_where_they_are_built(name, layers):
    """MFU of a DeepSeek-V3 of transformers, which leaves them out, would be 2 % too high."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = SimpleNamespace(model_type="llama", to_dict=lambda: config)
            self.add_module(name, torch.nn.Linear(4, 4))

    config = CONFIG | {"num_nextn_predict_layers": 1}
    reported = []
    assert ModelWatch(reported.append).tokens(Model(), (IDS,), {}) == 96
    assert reported[0]["model"].get("mtp_layers", 0) == layers


def test_batches_of_unlike_lengths_tell_how_long_they_are():
    """Fails when attention of batches that are padded to unlike lengths counts by the first of them."""
    watch = ModelWatch(lambda _: None)
    module = wrapped(CONFIG)
    told = []
    for step, microbatch, length in ((0, 0, 32), (1, 0, 8), (1, 0, 4), (1, 1, 32)):
        tokens = watch.tokens(module, (IDS[:, :length],), {})
        told.append(watch.unlike_work(step, microbatch, tokens))
    assert told == [None, (24, 192), (36, 240), (96, 3072)]


def test_tokens_of_one_of_many_samples_are_not_those_of_all():
    """Fails when gradients of each sample, by vmap, count one sample for all of them."""
    watch, module, told = ModelWatch(lambda _: None), wrapped(CONFIG), []

    def of_sample(ids):
        told.append(watch.tokens(module, (ids[None],), {}))
        return ids.sum()

    torch.func.vmap(of_sample)(IDS)
    assert told == [0]
