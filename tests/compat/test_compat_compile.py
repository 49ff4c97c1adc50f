"""torch.jit and torch.compile before, inside and after the block: results equal, never poisoned."""

from __future__ import annotations

import pytest
import torch
from compat_harness import INTERCEPTS, unnoticed
from torch import Tensor, nn

import memwatch

BACKENDS = ("eager", "aot_eager", "inductor")


def _f(x: Tensor, w: Tensor) -> Tensor:
    return ((x @ w).sin() * 2).sum(-1)


def _data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(16, 32), torch.randn(32, 32, requires_grad=True)


def _frames() -> int:
    return torch._dynamo.utils.counters["frames"]["ok"]


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    """Empty the compiler.

    This first use imports it, so that the heap of other tests, which search it for leaks, stays small.
    """
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize("backend", BACKENDS)
def test_function_compiled_before_the_block_runs_compiled_in_it_and_after(backend, intercept):
    """Same bits, no frame compiled again, 100 calls afterwards served from the same compiled code."""
    x, w = _data()
    compiled = torch.compile(_f, backend=backend)
    compiled(x, w).sum().backward()
    plain, plain_grad = compiled(x, w).detach(), w.grad.clone()
    assert _frames() > 0
    before = _frames()
    w.grad = None
    with memwatch.profile(intercept=intercept) as prof:
        inside = compiled(x, w)
        inside.sum().backward()
    assert torch.equal(inside.detach(), plain)
    assert torch.equal(w.grad, plain_grad)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(100):
            assert torch.equal(compiled(x, w), plain)
    assert _frames() == before
    assert prof.peak_increase_bytes > 0
    assert any(kind == "compiled" for kind, _ in prof.notes)


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize("backend", BACKENDS)
def test_function_compiled_first_inside_the_block(backend, intercept):
    x, w = _data()
    expected = torch.compile(_f, backend=backend)(x, w).detach()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(_f, backend=backend)
    with memwatch.profile(intercept=intercept):
        inside = compiled(x, w)
        inside.sum().backward()
    assert torch.equal(inside.detach(), expected)
    assert _frames() > 0
    before = _frames()
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(100):
            assert torch.equal(compiled(x, w), expected)
    assert _frames() == before


def _transformed(x: Tensor) -> Tensor:
    """Call transforms that switch hooks on saved tensors off while they run."""
    return torch.func.grad(lambda row: row.sin().sum())(x) + torch.vmap(torch.cos)(x)


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_transforms_compile_before_and_inside_the_block_in_one_graph(backend, intercept):
    x = torch.randn(8)
    expected = _transformed(x)
    before = torch.compile(_transformed, backend=backend, fullgraph=True)
    assert torch.equal(before(x), expected)
    frames = _frames()
    with memwatch.profile(intercept=intercept):
        assert torch.equal(before(x), expected)
        assert _frames() == frames
        within = torch.compile(lambda x: _transformed(x), backend=backend, fullgraph=True)
        assert torch.equal(within(x), expected)
        assert torch.equal(_transformed(x), expected)
    with memwatch.profile(intercept=intercept):
        assert torch.equal(within(x), expected)
    assert torch.equal(within(x), expected)


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_compiled_module_trains_the_same(intercept):
    """Compiled before, trained inside, with a checkpoint of eager code around it; then trained on after."""

    def train(inside):
        torch.manual_seed(0)
        torch._dynamo.reset()
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        compiled = torch.compile(net, backend="aot_eager")
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.randn(4, 8)

        def steps():
            for _ in range(2):
                optimizer.zero_grad()
                compiled(x).pow(2).mean().backward()
                optimizer.step()

        steps()
        if inside:
            with memwatch.profile(intercept=intercept):
                steps()
        else:
            steps()
        steps()
        return [p.detach().clone() for p in net.parameters()], _frames()

    plain, observed = train(False), train(True)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], observed[0], strict=True))
    assert 2 * plain[1] == observed[1]


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_compiled_function_that_was_only_called_in_the_block_before(intercept):
    """Compiling after the block works as if there had been none."""
    x, w = _data()
    with memwatch.profile(intercept=intercept):
        eager = _f(x, w)
    compiled = torch.compile(_f, backend="aot_eager")
    assert torch.equal(compiled(x, w), eager)
    assert _frames() == 1


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_graph_breaks_and_recompiles(intercept):
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() + len(x.shape)

    compiled = torch.compile(broken, backend="aot_eager", dynamic=False)
    with memwatch.profile(intercept=intercept):
        results = [compiled(torch.ones(size)) for size in (3, 4, 3)]
    assert [torch.equal(out, broken(torch.ones(out.shape[0]))) for out in results] == [True] * 3
    frames = _frames()
    compiled(torch.ones(4))
    assert _frames() == frames


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_export_and_make_fx_inside_the_block(intercept):
    from torch.fx.experimental.proxy_tensor import make_fx

    net, x = nn.Linear(4, 4), torch.randn(2, 4)
    with memwatch.profile(intercept=intercept):
        exported = torch.export.export(net, (x,))
        traced = make_fx(_f)(x, torch.randn(4, 4))
        fake = make_fx(_f, tracing_mode="fake")(x, torch.randn(4, 4))
    assert torch.equal(exported.module()(x), net(x))
    names = [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]
    assert names == ["aten.mm.default", "aten.sin.default", "aten.mul.Tensor", "aten.sum.dim_IntList"]
    assert [str(node.target) for node in fake.graph.nodes if node.op == "call_function"] == names


@unnoticed
def test_jit_script_and_trace():
    net = nn.Linear(6, 3)
    scripted, traced = torch.jit.script(net), torch.jit.trace(net, torch.ones(2, 6))
    for _ in range(3):
        (scripted(torch.randn(2, 6)) + traced(torch.randn(2, 6))).sum().backward()
    return net, torch.jit.freeze(scripted.eval())(torch.ones(2, 6))


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_jit_fork(intercept):
    """TorchScript runs the forked part in a thread of its own, which has no Python frames."""

    @torch.jit.script
    def parallel(x: Tensor) -> Tensor:
        future = torch.jit.fork(torch.sin, x)
        return torch.jit.wait(future) + x.cos()

    x = torch.randn(8)
    plain = parallel(x)
    with memwatch.profile(intercept=intercept) as prof:
        observed = [parallel(x) for _ in range(3)]
    assert all(torch.equal(out, plain) for out in observed)
    assert not [text for kind, text in prof.notes if kind == "recorder"]


@unnoticed
def test_fx_symbolic_trace():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    graph = torch.fx.symbolic_trace(net)
    graph(torch.randn(2, 4)).sum().backward()
    return net, graph.code


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_module_compiled_first_inside_the_block_stays_compiled(intercept):
    """Module calls are traced as torch's own, so code that was compiled in the block is valid after it."""
    net = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 2)))
    compiled, x = torch.compile(net, backend="aot_eager"), torch.randn(4, 8)
    with memwatch.profile(intercept=intercept):
        for _ in range(2):
            compiled(x).sum().backward()
    frames = _frames()
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(100):
            compiled(x)
    assert _frames() == frames > 0


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_compiled_optimizer_step(intercept):
    """A compiled step, first compiled in the block, is the same code after it."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(net.parameters(), lr=torch.tensor(0.01), capturable=False)
    step = torch.compile(optimizer.step, backend="aot_eager")
    net(torch.randn(2, 4)).sum().backward()
    step()
    step()
    with memwatch.profile(intercept=intercept):
        step()
    frames = _frames()
    step()
    assert _frames() == frames
