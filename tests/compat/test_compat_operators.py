"""Higher-order operators, and tensor subclasses under the program's own modes."""

from __future__ import annotations

import functools
import gc
import threading
import weakref

import pytest
import torch
from compat_harness import INTERCEPTS, unnoticed
from torch import nn
from torch._higher_order_ops import scan
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import swap_tensors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import memwatch


class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


@functools.cache
def exported():
    """Export on first use, which imports torch's compiler: what others search for leaks stays small."""
    return torch.export.export(Branches(), (torch.ones(3, 4),)).module()


@pytest.fixture(autouse=True, scope="module")
def _ready():
    exported()  # both outside every block
    compiled_checkpoint()


@unnoticed
def test_an_exported_module_with_a_branch():
    return exported()(torch.ones(3, 4))


@unnoticed
def test_cond_and_its_backward():
    x = torch.ones(3, requires_grad=True)
    y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
    y.sum().backward()
    return y, x


@unnoticed(deaths=False)  # torch traces its function anew at each call, and allocates for that as it likes
def test_scan_and_its_backward():
    x = torch.ones(3, 2, requires_grad=True)
    carried, stacked = scan(lambda c, x: (c * x + 1, c * 2), torch.ones(2), x)
    (carried.sum() + stacked.sum()).backward()
    return carried, stacked, x


@unnoticed
def test_flex_attention_that_is_not_compiled():
    query = torch.ones(1, 1, 16, 8)
    return flex_attention(query, query, query, score_mod=lambda score, b, h, i, j: score + i)


def checkpointed(x):
    return checkpoint(lambda y: nn.functional.dropout(y.sin(), 0.5), x, use_reentrant=False).sum()


@functools.cache
def compiled_checkpoint():
    return torch.compile(checkpointed, backend="aot_eager")


@unnoticed
def test_compiled_checkpoint_with_dropout():
    """Its backward is compiled, and runs an operator that keeps the state of random numbers."""
    x = torch.ones(3, requires_grad=True)
    compiled_checkpoint()(x).backward()
    return x


class Doubling(TorchDispatchMode):
    """Double the sine of a subclass, and record the ops that arrive."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.asked.append((str(func), [kind.__name__ for kind in types]))
        result = func(*args, **(kwargs or {}))
        is_pair = any(issubclass(kind, TwoTensor) for kind in types)
        return result * 2 if func is torch.ops.aten.sin.default and is_pair else result


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_the_programs_mode_sees_ops_of_subclasses_first(intercept):
    """A mode that was entered before the block gets the op itself, not the ops that the subclass runs."""
    pair = TwoTensor(torch.ones(2), torch.ones(2))
    with Doubling() as plain:
        expected = pair.sin() + 1
    with Doubling() as mode, memwatch.profile(intercept=intercept) as prof:
        result = pair.sin() + 1
    assert torch.equal(result.a, expected.a)
    assert mode.asked == plain.asked
    assert "aten.sin.default" in set(prof.ops["name"])


@unnoticed
def test_decomposing_an_exported_program():
    program = torch.export.export(nn.Linear(3, 3), (torch.ones(2, 3),))
    return str(program.run_decompositions().graph)


@unnoticed
def test_swapping_parameters_of_a_module_that_was_called():
    net = nn.Linear(3, 3)
    net(torch.ones(2, 3)).sum().backward()
    net.zero_grad()
    torch.utils.swap_tensors(t1=net.weight, t2=nn.Parameter(torch.ones(3, 3)))
    return net(torch.ones(2, 3))


@unnoticed
def test_swapping_with_a_function_that_was_imported_before():
    net = nn.Linear(3, 3)
    net(torch.ones(2, 3)).sum().backward()
    net.zero_grad()
    swap_tensors(net.weight, nn.Parameter(torch.ones(3, 3)))
    return net(torch.ones(2, 3))


@unnoticed
def test_tensors_that_the_program_refers_to_weakly_are_not_swapped():
    net = nn.Linear(3, 3)
    net(torch.ones(2, 3))
    kept = weakref.ref(net.weight)
    with pytest.raises(RuntimeError, match="weakref"):
        swap_tensors(net.weight, nn.Parameter(torch.ones(3, 3)))
    return kept()


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_names_stay_with_swapped_parameters(intercept):
    net = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile(intercept=intercept) as prof:
        torch.utils.swap_tensors(net.weight, nn.Parameter(torch.ones(256, 256)))
        net(torch.ones(2, 256)).sum().backward()
        optimizer.step()
    assert "`weight` .grad" in set(prof.storages["name"])


@pytest.mark.parametrize("intercept", ["mode", "mode-python"], indirect=True)
def test_classes_of_the_program_are_not_kept(intercept):
    class Mine(TwoTensor):
        pass

    with memwatch.profile(intercept=intercept):
        Mine(torch.ones(2), torch.ones(2)).sin()
    kept = weakref.ref(Mine)
    del Mine
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("intercept", INTERCEPTS, indirect=True)
def test_a_trace_in_another_thread_is_left_alone(intercept):
    """A mode that this thread enters stays off in the other thread, and the other way round."""
    state = []

    def trace():
        torch.jit.trace(lambda x: x * 2, torch.ones(3))
        modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        state.append((modes, hooks, "Fake" in str(torch._C._dispatch_tls_local_include_set())))

    with memwatch.profile(intercept=intercept) as prof:
        thread = threading.Thread(target=trace)
        thread.start()
        thread.join()
        torch.ones(3).exp()
    assert state == [([], None, False)]
    assert "aten.exp.default" in set(prof.ops["name"])
