"""What two steps multiply, held against FLOPs counted by torch itself on the same loop."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from meshscope.probe.hooks.base import Capture
from meshscope.probe.hooks.compute import ComputeHook
from meshscope.probe.hooks.module_products import doubts_of
from meshscope.probe.hooks.pass_work import PassWork, RunRows
from meshscope.probe.hooks.step_work import StepWork, observed_fields
from meshscope.probe.recording.open_recorder import EarlyRecorder
from meshscope.probe.settings.config import ProbeConfig

IDS = torch.arange(24).reshape(2, 12)


@pytest.fixture(autouse=True)
def nothing_compiled():
    """Forget what other tests compiled: then nothing would be observed."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Block(nn.Module):
    """Two products, one inside of a residual."""

    def __init__(self):
        """Make them."""
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        """Return what the residual stream is after it."""
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    """Embedding, blocks that may run in a loop or under checkpointing, and a head on some tokens."""

    def __init__(self, loops=1, last=0, reentrant=None):
        """Make it."""
        super().__init__()
        self.embedding, self.head = nn.Embedding(24, 16), nn.Linear(16, 24)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.loops, self.last, self.reentrant = loops, last, reentrant

    def forward(self, ids):
        """Return logits."""
        x = self.embedding(ids)
        for _ in range(self.loops):
            for block in self.blocks:
                again = self.reentrant is not None
                x = checkpoint(block, x, use_reentrant=self.reentrant) if again else block(x)
        return self.head(x[:, -self.last :])


class Fused(Model):
    """Multiplies with the weights of its head in a kernel of its own, as fused losses do."""

    def forward(self, ids):
        """Return logits."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return torch.ops.aten.matmul.default(x, self.head.weight.T)


class Attended(Model):
    """Layers attend before they multiply, in a way that a test names; some weights have no module."""

    def __init__(self, kind, prefix=0):
        """Make it, with some learned tokens before the others."""
        super().__init__()
        self.kind, self.prefix = kind, nn.Parameter(torch.randn(1, prefix, 16))
        self.mixed = nn.Parameter(torch.randn(16, 16))

    def forward(self, ids):
        """Return logits."""
        x = torch.cat([self.prefix.expand(len(ids), -1, -1), self.embedding(ids)], 1)
        for block in self.blocks:
            x = block(x + getattr(self, self.kind)(x))
        return self.head(x)

    def fused(self, x):
        """Attend by torch's own function, in four heads of which pairs share keys."""
        query, key = x.view(len(x), -1, 4, 4), x.view(len(x), -1, 4, 4)[:, :, :2]
        query, key = query.transpose(1, 2), key.transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(
            query, key, key, is_causal=True, enable_gqa=True
        ).reshape(x.shape)

    def by_hand(self, x):
        """Attend by products of one's own, with a matrix that is a parameter."""
        return (x @ x.transpose(1, 2)).softmax(-1) @ torch.einsum("bth,oh->bto", x, self.mixed)

    def linear(self, x):
        """Attend without scores."""
        return x @ (x.transpose(1, 2) @ x)

    def delta(self, x):
        """Attend by a delta rule: what is written is solved for, after what the keys before have written."""
        keys = torch.eye(x.shape[1]) + 0.01 * (x @ x.transpose(1, 2)).tril(-1)
        return torch.linalg.solve_triangular(keys, x, upper=False, unitriangular=True)

    def checked(self, x):
        """Attend inside of reentrant checkpointing."""
        return checkpoint(Attention(), x, use_reentrant=True)

    def plain(self, x):
        """Attend as it does, without."""
        return Attention()(x)


class Attention(nn.Module):
    """Attends by products of its own."""

    def forward(self, x):
        """Return what each token gathers."""
        return (x @ x.transpose(1, 2)).softmax(-1) @ x


class Tied(Model):
    """Multiplies with its embedding in a function of its own, and returns logits under a name."""

    def __init__(self):
        """Make it, without a head."""
        super().__init__()
        del self.head

    def forward(self, ids):
        """Return logits."""
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return {"logits": nn.functional.linear(x[:, -4:], self.embedding.weight)}


def low_rank():
    """Return a model whose weights are frozen, with a pair of small matrices beside one of them."""
    model = Model().requires_grad_(requires_grad=False)
    for block in model.blocks:
        block.up = LowRank(block.up)
    return model


class LowRank(nn.Module):
    """A frozen product and two trained ones beside it."""

    def __init__(self, base):
        """Keep one, make two."""
        super().__init__()
        self.base, self.a, self.b = base, nn.Linear(16, 2), nn.Linear(2, 32)

    def forward(self, x):
        """Return their sum."""
        return self.base(x) + self.b(self.a(x))


def half_frozen():
    """Return a model whose first layers and embedding are frozen: no gradient reaches them."""
    model = Model()
    for part in (model.embedding, model.blocks[0], model.blocks[1]):
        part.requires_grad_(requires_grad=False)
    return model


def observed(step, model, steps=4):
    """Return what a probe learns in some steps of a training."""
    told = []
    capture = Capture(EarlyRecorder(), ProbeConfig(), lambda: None)
    facts = type("Facts", (), {"learn": staticmethod(told.append)})()
    hook = ComputeHook(capture, facts)
    hook.install()
    try:
        for _ in range(steps):
            model.zero_grad()
            step().backward()
            capture.recorder.step += 1
            hook.step_ended()
    finally:
        hook.remove()
    assert capture.activity.observer is None
    return {name: value for facts in told for name, value in facts.get("observed", {}).items()}


def counted_flops(step):
    """Return the FLOPs of one step, forward and backward, by torch."""
    with FlopCounterMode(display=False) as counter:
        step().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (Model(), 3),
        (Model(loops=4), 12),
        (Model(last=1), 3),
        (low_rank(), 3),
        (half_frozen(), 1 + 2 / 3),
    ],
    ids=["plain", "loop", "last token", "low rank", "frozen below"],
)
def test_products_are_those_that_torch_counts(model, layers):
    """Fails when MFU counts what never ran, or once what runs in a loop."""

    def step():
        return model(IDS).sum()

    found = observed(step, model)
    assert found["ran_products"] * 6 * IDS.numel() == pytest.approx(counted_flops(step))
    assert found["ran_layers"] == pytest.approx(layers)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_no_work_of_the_model(reentrant):
    """Fails when checkpointing changes MFU: gradients of its calls are lost, or passes count twice."""
    model, plain = Model(reentrant=reentrant), Model()
    found = observed(lambda: model(IDS).sum(), model)
    assert found["ran_products"] * 6 * IDS.numel() == counted_flops(lambda: plain(IDS).sum())


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [
        ("fused", 0),
        ("fused", 5),
        ("by_hand", 0),
        ("by_hand", 3),
        ("linear", 0),
        ("checked", 0),
        ("delta", 0),
    ],
)
def test_attention_is_what_its_functions_multiply(kind, prefix):
    """Fails when attention counts by the sizes of a layer: windows, soft prompts, linear attention."""
    model, plain = Attended(kind, prefix), Attended(kind.replace("checked", "plain"), prefix)
    found = observed(lambda: model(IDS).sum(), model)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        counted = counted_flops(lambda: plain(IDS).sum())
    told = 6 * IDS.numel() * (found["ran_products"] + found["ran_attention"])
    assert told == pytest.approx(counted)
    assert found["ran_keys"] == IDS.shape[1]


class Penalised(Model):
    """Takes ids or what they are embedded as."""

    def forward(self, given):
        """Return logits."""
        x = given if given.is_floating_point() else self.embedding(given)
        for block in self.blocks:
            x = nn.functional.gelu(block(x))
        return self.head(x)


def dispatched_flops(step):
    """Return the FLOPs of one step by torch's formulas; its counter fails where gradients have gradients."""
    counts = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            count = flop_registry.get(func._overloadpacket)
            counts.append(0 if count is None else count(*args, **(kwargs or {}), out_val=result))
            return result

    with Count():
        step().backward()
    return sum(counts)


def outside(model):
    """Return a loss that multiplies what a model returned, beside its modules."""
    logits = model(IDS)
    return (logits @ model.head.weight).sum() + torch.bmm(logits, logits.transpose(1, 2)).sum()


def penalty(model):
    """Return the size of a gradient."""
    given = model.embedding.weight[IDS].detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(given).sum(), given, create_graph=True)
    return gradient.pow(2).mean() + model(IDS).mean()


@pytest.mark.parametrize("loss", [outside, penalty])
def test_products_outside_of_modules_are_of_the_model(loss):
    """Fails when logits of a function, contrastive scores, or the gradients of gradients are left out of MFU."""
    model = Penalised()
    found = observed(lambda: loss(model), model)
    told = found["ran_products"] + found.get("ran_attention", 0.0)
    assert told * 6 * IDS.numel() == pytest.approx(dispatched_flops(lambda: loss(model)))
    assert found["complete"]


@pytest.mark.parametrize("name", ["inner", "hidden", "inverse"])
def test_products_that_are_not_counted_leave_it_open(name):
    """Fails when a function of a kind that is not counted makes MFU too low instead of unknown."""
    model = Model()
    weight = nn.Parameter(torch.randn(24, 24))

    def multiplied(logits):
        if name == "inner":
            return torch.inner(logits, weight)
        if name == "inverse":
            return logits * torch.linalg.inv(weight).sum()
        return torch.ops.aten.mm.default(logits.flatten(0, 1), weight)

    model.head.register_forward_hook(lambda _module, _args, logits: multiplied(logits))
    assert observed(lambda: model(IDS).sum(), model) == {"uncounted": True}


def test_a_reference_model_counts_forward_only():
    """Fails when a pass without gradients counts as training, or not at all."""
    model = Model()
    reference = copy.deepcopy(model)

    def step():
        with torch.no_grad():
            kept = reference(IDS).mean()
        return model(IDS).sum() + kept

    assert observed(step, model)["ran_products"] * 6 * IDS.numel() == counted_flops(step)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("own", [True, False], ids=["policy", "teacher"])
def test_passes_of_every_third_step_count_by_their_share(first, own):
    """Fails when a policy that generates before some updates has an MFU without what it generates."""
    model, flops, numbers = Model(), [], itertools.count()
    generates = model if own else copy.deepcopy(model)

    def step():
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            for tokens in range(6, 9) if next(numbers) % 3 == first else ():
                generates(IDS[:, :tokens])
        flops.append(counter.get_total_flops())
        return model(IDS).sum()

    found = observed(step, model, steps=10)
    told = found["ran_products"] * 6 * IDS.numel()
    assert told == pytest.approx(counted_flops(lambda: model(IDS).sum()) + sum(flops[1:10]) / 9)
    assert found["ran_without"] * 6 * IDS.numel() == pytest.approx(sum(flops[1:10]) / 9)


@pytest.mark.parametrize("every", [2, 5])
def test_a_critic_is_updated_more_often_than_its_generator(every):
    """Fails when MFU is that of the steps of one kind, where the passes of others train another module."""
    critic, generator, numbers = Block(), Block(), itertools.count()
    noise = torch.randn(2, 3, 16)
    both = nn.ModuleList([critic, generator])

    def step(number=None):
        if (next(numbers) if number is None else number) % every == every - 1:
            return critic(generator(noise)).sum()
        return critic(noise).sum()

    steps = 1 + 4 * every
    found = observed(step, both, steps)
    counts = [counted_flops(lambda n=n: step(n)) for n in range(1, steps)]
    assert found["per_step"]
    assert found["ran_products"] * 6 == pytest.approx(sum(counts) / len(counts))


@pytest.mark.parametrize("recorded", [True, False])
def test_gradients_that_no_backward_pass_takes_leave_it_open(recorded):
    """Fails when a generator that is detached counts as if it were trained, or one without gradients is unknown."""
    critic, generator = Block(), Block()
    noise = torch.randn(2, 3, 16)

    def step():
        with torch.set_grad_enabled(recorded):
            made = generator(noise).detach()
        return critic(made).sum()

    found = observed(step, nn.ModuleList([critic, generator]))
    if recorded:
        assert found == {"unmet": True}
    else:
        assert found["ran_products"] * 6 == counted_flops(step)


def test_images_may_be_evaluated():
    """Fails when an evaluation ends what is known of a model that is given no tokens."""
    model, images, numbers = Block(), torch.randn(2, 3, 16), itertools.count()

    def step():
        with torch.no_grad():
            _ = model(images) if next(numbers) % 4 == 3 else None
        return model(images).sum()

    found = observed(step, model, steps=9)
    flops = counted_flops(lambda: model(images).sum())
    assert found["per_step"]
    assert found["ran_products"] * 6 == pytest.approx(flops + 2 * 2 * 6 * 2 * 16 * 32 / 8)


def test_a_pass_may_be_met_after_an_update():
    """Fails when passes whose backward pass comes after an optimizer that ends the step leave MFU unknown."""
    model, kept = Model(), []

    def step():
        kept.append(model(IDS).sum())
        return kept.pop(0) if len(kept) > 1 else model(IDS).sum()

    assert observed(step, model)["ran_products"] * 6 * IDS.numel() == counted_flops(
        lambda: model(IDS).sum()
    )


class Taught(Model):
    """Holds a teacher in evaluation where no walk over its modules finds it."""

    def __init__(self, teacher):
        """Make it."""
        super().__init__()
        self.hidden = [teacher.eval()]
        self.results = []

    def forward(self, ids):
        """Return logits, moved by what the teacher says."""
        x = self.embedding(ids)
        with torch.no_grad():
            said = self.hidden[0](*[x.detach()] * self.inputs)
        self.results.append(said[0] if isinstance(said, tuple) else said)
        return super().forward(ids) + self.results[-1].mean()


_LAYER = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)


@pytest.mark.parametrize(
    ("teacher", "inputs", "weights"),
    [
        (nn.TransformerEncoder(_LAYER, 2), 1, 2 * (4 * 16 * 16 + 2 * 16 * 32)),
        (_LAYER, 1, 4 * 16 * 16 + 2 * 16 * 32),
        (nn.MultiheadAttention(16, 4, batch_first=True), 3, 4 * 16 * 16),
    ],
    ids=["encoder", "layer", "attention"],
)
def test_a_teacher_with_a_fast_path_keeps_its_results(teacher, inputs, weights):
    """Fails when watching functions makes torch compute what the program hides in another way, or uncounted."""
    torch.manual_seed(0)
    model = Taught(teacher)
    model.inputs = inputs
    learnt = observed(lambda: model(IDS).sum(), model)
    model(IDS)
    assert all(torch.equal(model.results[-1], result) for result in model.results)
    own = 3 * 2 * 16 * 32 + 16 * 24
    assert learnt["ran_products"] == pytest.approx(own + weights / 3)


class Unreadable(nn.Parameter):
    """A parameter of a library that does not say what it is a part of."""

    @property
    def _base(self):
        """Raise what a library raises."""
        raise RuntimeError("no storage")


class Shifted(Model):
    """Adds such a parameter."""

    def forward(self, ids):
        """Return logits."""
        return super().forward(ids) + self.shift


def test_what_cannot_be_read_of_a_function_ends_no_training():
    """Fails when an operand of a kind that is not known raises in the program that is watched."""
    model = Shifted()
    model.shift = Unreadable(torch.zeros(24))
    assert "ran_products" not in observed(lambda: model(IDS).sum(), model)


def test_logits_of_a_tied_embedding_are_a_product():
    """Fails when the head of a model that has no module for it is left out, or its MFU unknown."""
    model = Tied()

    def step():
        return model(IDS)["logits"].sum()

    found = observed(step, model)
    assert found["ran_products"] * 6 * IDS.numel() == counted_flops(step)
    assert "headless" not in found


def test_an_mlp_as_wide_as_the_vocabulary_is_no_head():
    """Fails when logits of a function are left out, as a matrix of a layer is taken for the head."""
    model = Tied()
    for block in model.blocks:
        block.up, block.down = nn.Linear(16, 24), nn.Linear(24, 16)

    def step():
        return model(IDS)["logits"].sum()

    assert observed(step, model)["ran_products"] * 6 * IDS.numel() == counted_flops(step)


def test_weights_that_multiply_unseen_leave_it_open():
    """Fails when a product that is made without a call of its module is taken for none."""
    whole = Fused()
    assert "ran_products" not in observed(lambda: whole(IDS).sum(), whole)


def test_what_is_compiled_in_an_observed_step_is_compiled_once():
    """Fails when observing has torch.compile begin anew in the next step."""
    model, compiled, passes = Model(), [], []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    def step():
        passes.append(None)
        if len(passes) < 2:
            return model(IDS).sum()
        return torch.compile(model, backend=backend)(IDS).sum()

    assert observed(step, model) == {}
    assert len(compiled) == 1


def step(trained, *, tokens=1, is_whole=True, has_head=True, **more):
    """Return the work of a step: what training on its tokens multiplied, in one module."""
    attention = 3 * more.pop("attention", 0.0)
    passes = {(1, 1, False): PassWork(tokens, 3 * trained * tokens, attention, 9.0)}
    return StepWork(tokens, passes, 0.0, is_whole, has_head, **more)


_ALIKE = {"ran_layers": 3.0, "ran_keys": 0.0}
_LONG, _SHORT = ({"squares": length, "attention": 9.0 * length} for length in (20.0, 10.0))
_RAN = RunRows({(1, 1, False): 6.0}, 6, 6)
_GENERATION = {(1, 0, False): PassWork(2.0, 40.0)}


@pytest.mark.parametrize(
    ("steps", "fields"),
    [
        ([step(100.0), step(100.5)], {"ran_products": 100.25, **_ALIKE}),
        ([step(100.0), step(150.0)], {"varies": True}),
        ([step(100.0), step(100.0, has_head=False)], {"headless": True}),
        (
            [step(100.0), step(100.0, is_whole=False, seen=80.0, unseen=7.0)],
            {"seen_products": 40.0, "unseen_weights": 7.0},
        ),
        ([step(100.0), step(100.0, is_mixed=True)], {"mixed": True}),
        (
            [step(100.0, **_LONG), step(100.0, **_SHORT)],
            {"ran_products": 100.0, "ran_layers": 3.0, "ran_keys": 15.0, "ran_attention": 135.0},
        ),
    ],
    ids=["alike", "unlike", "no head", "not all seen", "two models", "lengths"],
)
def test_two_steps_must_agree(steps, fields):
    """Fails when a step of a random depth stands for the run."""
    assert observed_fields(steps, _RAN) == pytest.approx(fields)


@pytest.mark.parametrize(
    ("late", "fields"),
    [
        ([StepWork(0, _GENERATION, 0.0, is_whole=True, has_head=True)], {"ran_without": 40.0}),
        ([StepWork(0, _GENERATION, 0.0, is_whole=False, has_head=True)], {"partial": True}),
        ([], {"partial": True}),
    ],
    ids=["seen", "not all seen", "not seen"],
)
def test_passes_of_later_steps_count_by_their_rows(late, fields):
    """Fails when passes that no observed step has are left out of MFU, or counted where they were not seen."""
    ran = RunRows({(1, 1, False): 6.0, (1, 0, False): 36.0}, 6, 6)
    found = observed_fields([step(100.0)] * 2, ran, late)
    assert {name: found[name] for name in fields} == fields
    assert found.get("ran_products", 140.0) == 140.0


@pytest.mark.parametrize(
    ("model", "doubts"),
    [
        (Model(), {}),
        (low_rank(), {"frozen": True}),
        (nn.Sequential(nn.Embedding(24, 16), Block()), {"headless": True}),
        (object(), {}),
    ],
    ids=["plain", "frozen", "no head", "no module"],
)
def test_what_sizes_do_not_tell_is_known_before_a_step(model, doubts):
    """Fails when a compiled model with frozen weights has the MFU of full training."""
    assert doubts_of(model) == doubts
