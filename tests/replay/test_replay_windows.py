"""Programs that bend tensors: views by any trick, resizes, swaps, custom ops; replayed, or refused by name."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from replay_recording import record, replay_program
from torch import nn

from memwatch.errors import MemwatchError, UnsupportedOpError
from memwatch.replay.api import plan, replayable

X = torch.linspace(-2, 2, 64 * 64).reshape(64, 64)
W = torch.linspace(-1, 1, 64 * 64).reshape(64, 64).requires_grad_()
OUTSIDE = torch.zeros(16)
OWN_GENERATOR = torch.Generator()


@torch.library.custom_op("memwatch_test::triple_", mutates_args={"tensor"})
def triple_(tensor: torch.Tensor) -> None:
    tensor.mul_(3)


def backward_twice():
    W.grad = None
    loss = (X @ W).relu().sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    return loss, W.grad


def views_as_other_types():
    a = X.clone()
    a.view(torch.int32).bitwise_and_(0x7FFFFFFF)
    return a, a[::2].t().contiguous(), torch.as_strided(a, (10, 10), (1, 1)).sum()


def complex_views():
    z = torch.fft.fft(X)
    y = z.conj()
    return y @ z, y.imag, torch.view_as_real(z).sum(), torch.resolve_neg(y.imag), y


def resized_outputs():
    a, b = torch.empty(0), torch.empty(64, 64)
    torch.add(X, X, out=a)
    torch.mul(a, 2, out=b)
    a.resize_(128, 128)
    a.fill_(1)
    return a, b


def swapped_storages():
    a, b = torch.zeros(3), torch.arange(10.0)
    a.set_(b.untyped_storage(), 2, (3,), (1,))
    a.mul_(2)
    a.data = torch.ones(5)
    a.add_(1)
    return a, b


def sizes_of_zero():
    a = torch.empty(0, 5)
    return a.sum(), torch.cat([a, torch.ones(1, 5)]), a


def values_on_the_host():
    total = 0.0
    for index in range(3):
        part = (X * index).sum()
        total += part.item() if part.item() > 0 else 1.0
    return torch.tensor(total) * 2


def generators():
    torch.manual_seed(4)
    own = torch.rand(3, generator=OWN_GENERATOR)
    torch.manual_seed(5)
    return own, torch.randn(3), torch.randperm(10)


def inference():
    with torch.inference_mode():
        return nn.Linear(64, 64)(X).relu_().reshape(-1)[::2].clone()


def double_backward():
    W.grad = None
    (grad,) = torch.autograd.grad((X @ W).tanh().sum(), W, create_graph=True)
    grad.pow(2).sum().backward()
    return W.grad


def per_sample_gradients():
    return torch.func.vmap(torch.func.grad(lambda w, x: (x @ w).sin().sum()), (None, 0))(W.detach(), X)


def custom_op_in_place():
    a = X.clone()
    torch.ops.memwatch_test.triple_(a)
    return a


def overlapping():
    a = torch.ones(4).expand(3, 4)
    return a.sum(0) + a.contiguous().sum()


def data_from_the_host():
    return torch.tensor([1.0, 2.0]).cumsum(0), torch.from_numpy(np.ones(4)).sum()


def an_op_that_raises():
    try:
        torch.mm(X, torch.ones(3, 3))
    except RuntimeError:
        return X + 1


def lists_of_tensors():
    a = [torch.ones(3), torch.ones(4)]
    torch._foreach_add_(a, 1.0)
    return torch._foreach_norm(a), a, torch.split(torch.cat([X, X]), 64)[1] + 1


def shapes_from_values():
    return X[X > 0].sum(), (X > 1).nonzero(), torch.unique(torch.round(X))


def memory_filled_by_the_host():
    """`ctc_loss` builds tensors from lists by `empty` and a plain copy; numpy can do the same."""
    a = torch.empty(4)
    a.numpy()[:] = 7
    scores = X[:10, :12].reshape(10, 2, 6).log_softmax(-1)
    return a * 2, nn.functional.ctc_loss(scores, torch.ones(2, 4, dtype=torch.long), (10, 10), (4, 3))


def jagged():
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    return (nested * 2).values().clone()


PROGRAMS = [
    backward_twice, views_as_other_types, complex_views, resized_outputs, swapped_storages, sizes_of_zero,
    values_on_the_host, generators, inference, double_backward, per_sample_gradients, custom_op_in_place,
    overlapping, data_from_the_host, an_op_that_raises, memory_filled_by_the_host,
    jagged, lists_of_tensors, shapes_from_values,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_replays_bitwise_at_the_planned_peak(program):
    """A tensor is a window on a storage, however it was made; the replay rebuilds it and compares everything."""
    result = replay_program(record(program))
    assert result.identical
    assert result.num_checked > 0
    assert result.peak_increase_bytes == result.planned_bytes


def test_dispatch_mode_records_the_same():
    """A program recorded through the mode replays as well."""
    assert replay_program(record(backward_twice, intercept="mode")).identical


def test_input_that_the_program_writes_starts_from_before():
    """The replay runs on a copy of the bytes from before the first write; the program's tensor stays."""
    a = torch.ones(8)

    def step():
        a.add_(1)
        return a * 2

    prof = record(step)
    assert replay_program(prof).identical
    assert replay_program(prof).identical
    assert a.tolist() == [2.0] * 8


def sparse():
    embedding = nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([1, 2, 3])).sum().backward()


def compressed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the layout a beta
        return X.to_sparse_csr() @ X


@pytest.mark.parametrize(
    ("program", "kind"), [(sparse, "sparse_coo tensor"), (compressed, "sparse_csr tensor")]
)
def test_unsupported_tensor_is_named_when_planning(program, kind):
    """The plan is refused before anything runs, with the op, its line and the kind of tensor."""
    prof = record(program)
    with pytest.raises(UnsupportedOpError, match=kind) as caught:
        plan(prof)
    assert "test_replay_windows.py:" in str(caught.value)
    assert "aten." in str(caught.value)


def test_compiled_code_is_refused():
    """Ops inside compiled code were not recorded. The error says so and how to record them."""
    compiled = torch.compile(lambda x: (x * 2).relu().sum(), backend="aot_eager")
    compiled(X)
    prof = record(lambda: compiled(X) + 1)
    with pytest.raises(UnsupportedOpError, match="force_eager"):
        plan(prof)


def test_fake_tensors_have_nothing_to_replay():
    """A block under FakeTensorMode computes no values."""
    from torch._subclasses import FakeTensorMode

    def step():
        with FakeTensorMode():
            return torch.ones(3) * 2

    prof = record(step)
    with pytest.raises(UnsupportedOpError, match="fake or meta tensors"):
        plan(prof)


def test_change_without_an_op_is_refused():
    """An input that numpy changed inside the block would give other results: the plan says so."""

    def step():
        first = OUTSIDE + 1
        OUTSIDE.numpy()[0] += 5
        return first, OUTSIDE * 2

    prof = record(step)
    with pytest.raises(UnsupportedOpError, match="by no recorded op"):
        plan(prof)


def test_change_without_an_op_is_found_by_the_comparison():
    """The same on a tensor of the block itself cannot be seen before: the results differ, and no tolerance hides it."""

    def step():
        a = torch.zeros(4)
        a.numpy()[0] = 5
        return a * 2

    result = replay_program(record(step))
    assert result.identical is False
    assert result.max_abs_diff == 10.0
    assert not result.within_tolerance


def test_profile_without_replay_cannot_be_planned():
    """The message says how to record."""
    import memwatch

    with memwatch.profile() as prof:
        X + 1
    with pytest.raises(MemwatchError, match=r"replay=True"):
        plan(prof)


def test_recorded_inputs_are_only_what_ops_used():
    """Strong references are held to the inputs of ops, not to everything the program made."""
    prof = record(backward_twice)
    kept = replayable(prof).inputs
    storages = {storage.data_ptr() for storage in kept.inputs.values()}
    assert storages == {X.data_ptr(), W.data_ptr()}
