"""Unit tests in the manner of torch's own test_nn, run under --memwatch-leaks=all by test_plugin_all.py."""

# ruff: noqa: PT009, PT027 - unittest's own assertions keep references of their own, which is why they are used

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import unittest
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, prune, rnn, vector_to_parameters
from torch.testing import assert_close

IMAGE = (2, 4, 8, 8)
LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "bilinear": (lambda: nn.Bilinear(4, 4, 3), (2, 4), (2, 4)),
    "conv1d": (lambda: nn.Conv1d(4, 2, 3), (2, 4, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 2, 3), IMAGE),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2), (1, 2, 4, 4, 4)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(4, 2, 3), IMAGE),
    "batch_norm": (lambda: nn.BatchNorm2d(4), IMAGE),
    "group_norm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "layer_norm": (lambda: nn.LayerNorm(8), IMAGE),
    "instance_norm": (lambda: nn.InstanceNorm2d(4, track_running_stats=True), IMAGE),
    "max_pool": (lambda: nn.MaxPool2d(2), IMAGE),
    "avg_pool": (lambda: nn.AdaptiveAvgPool2d(2), IMAGE),
    "dropout": (lambda: nn.Dropout(0.5), IMAGE),
    "softmax": (lambda: nn.Softmax(-1), (2, 4)),
    "gelu": (nn.GELU, (2, 4)),
    "prelu": (nn.PReLU, (2, 4)),
    "upsample": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "unfold": (lambda: nn.Unfold(2), IMAGE),
    "flatten": (nn.Flatten, IMAGE),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8)),
    "sequential": (lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), (2, 4)),
}


def build(name):
    make, *shapes = LAYERS[name]
    return make(), [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_backward(name):
    layer, inputs = build(name)
    layer(*inputs).sum().backward()
    assert all(value.grad is not None for value in inputs)


@pytest.mark.parametrize("name", ["linear", "conv2d", "group_norm", "gelu", "prelu"])
def test_gradcheck(name):
    layer, inputs = build(name)
    layer.double()
    assert torch.autograd.gradcheck(layer, [value.detach().double().requires_grad_() for value in inputs])


@pytest.mark.parametrize("name", ["linear", "conv2d", "batch_norm", "encoder", "sequential"])
def test_copies_and_state(name):
    layer, inputs = build(name)
    layer.eval()
    twin = copy.deepcopy(layer)
    pickled = pickle.loads(pickle.dumps(layer))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    twin.load_state_dict(torch.load(file))
    assert_close(twin(*inputs), layer(*inputs))
    assert_close(pickled(*inputs), layer(*inputs))


class TestNN(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.shared = nn.Linear(4, 4)

    def setUp(self):
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def test_hooks(self):
        counter = {"forward": 0, "backward": 0}

        def forward_hook(module, args, out):
            counter["forward"] += 1

        def backward_hook(module, grad_in, grad_out):
            counter["backward"] += 1

        handles = [
            self.net[0].register_forward_hook(forward_hook),
            self.net[0].register_full_backward_hook(backward_hook),
        ]
        self.net(torch.randn(2, 4, requires_grad=True)).sum().backward()
        for handle in handles:
            handle.remove()
        self.net(torch.randn(2, 4)).sum().backward()
        self.assertEqual(counter, {"forward": 1, "backward": 1})

    def test_hook_that_saves(self):
        saved = {}
        self.net[0].register_forward_hook(lambda module, args, out: saved.update(out=out))
        self.net(torch.randn(2, 4))
        self.assertEqual(saved["out"].shape, (2, 4))

    def test_wrong_shapes(self):
        with self.assertRaisesRegex(RuntimeError, "shapes"):
            self.net(torch.randn(2, 5))
        for size in (3, 5):
            with self.subTest(size=size), self.assertRaises(RuntimeError):
                self.net(torch.randn(2, size))

    def test_shared_module_accumulates(self):
        self.shared(torch.randn(2, 4)).sum().backward()
        self.assertIsNotNone(self.shared.weight.grad)

    def test_clip_grad(self):
        self.net(torch.randn(2, 4)).sum().backward()
        clip_grad_norm_(self.net.parameters(), 0.1)

    def test_vectors(self):
        vector = parameters_to_vector(self.net.parameters())
        vector_to_parameters(vector * 2, self.net.parameters())

    def test_replace_parameter(self):
        self.net[0].weight = nn.Parameter(torch.zeros(4, 4))
        self.net[0].register_buffer("mask", torch.ones(4))
        del self.net[0].bias

    def test_warnings(self):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            functional.mse_loss(torch.zeros(2, 1), torch.zeros(2))
        self.assertEqual(len(seen), 1)


def test_prune():
    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "weight", 0.5)
    layer(torch.ones(1, 4)).sum().backward()
    prune.remove(layer, "weight")


@pytest.mark.parametrize(
    "wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm]
)
def test_parametrized(wrap):
    layer = wrap(nn.Linear(4, 4))
    layer(torch.ones(2, 4)).sum().backward()
    nn.utils.parametrize.remove_parametrizations(layer, "weight")


@pytest.mark.parametrize("cell", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent(cell):
    packed = rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    out, _ = cell(3, 5)(packed)
    padded, _ = rnn.pad_packed_sequence(out)
    padded.sum().backward()


@pytest.mark.parametrize(
    "make", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop]
)
def test_optimizers(make):
    net = nn.Linear(4, 2)
    optimizer = make(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).pow(2).sum().backward()
        optimizer.step()
        schedule.step()
    make(net.parameters(), lr=0.1).load_state_dict(optimizer.state_dict())


def test_lbfgs():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 4)).pow(2).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def test_embedding_sparse():
    layer = nn.Embedding(10, 3, sparse=True)
    layer(torch.tensor([1, 2])).sum().backward()
    torch.optim.SparseAdam(list(layer.parameters())).step()


def test_attention():
    q, k, v = (torch.randn(1, 2, 4, 8, requires_grad=True) for _ in range(3))
    functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    nn.MultiheadAttention(8, 2, batch_first=True)(q[0], k[0], v[0])


def test_functional_call_and_transforms():
    net = nn.Linear(4, 1)
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(net, weights, (x,)).sum()

    torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, torch.randn(3, 4))


def test_double_backward():
    x = torch.randn(4, requires_grad=True)
    (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    grad.pow(2).sum().backward()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**2


def test_custom_function():
    x = torch.randn(4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(Cube.apply, (x,))


def test_checkpoint():
    from torch.utils.checkpoint import checkpoint

    net = nn.Linear(4, 4)
    for reentrant in (False, True):
        checkpoint(net, torch.ones(2, 4, requires_grad=True), use_reentrant=reentrant).sum().backward()


def test_lazy():
    layer = nn.LazyLinear(3)
    layer(torch.ones(2, 4))
    assert layer.weight.shape == (3, 4)


def test_module_list_and_dict():
    layers = nn.ModuleDict({name: nn.Linear(4, 4) for name in "ab"})
    layers["c"] = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    x = torch.ones(1, 4)
    for layer in itertools.chain([layers["a"], layers["b"]], layers["c"]):
        x = layer(x)
    x.sum().backward()


def test_collects():
    x = torch.ones(4)
    gc.collect()
    assert x.sum() == 4


@pytest.fixture(scope="module")
def corpus():
    return {"batches": []}


@pytest.mark.parametrize("n", range(3))
def test_corpus_grows(corpus, n):
    corpus["batches"].append(torch.randn(4))
    assert len(corpus["batches"]) == n + 1


def test_expected_error():
    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="size of tensor"):
        x + torch.ones(4)
    with pytest.raises(RuntimeError) as info:
        x.requires_grad_().sum().backward(torch.ones(4))
    assert "shape" in str(info.value)


@pytest.mark.xfail(strict=True)
def test_known_difference():
    assert_close(torch.ones(3), torch.zeros(3))
