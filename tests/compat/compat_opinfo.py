"""PyTorch's own op database as programs: one sample, forward and backward."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from compat_frozen import freeze
from compat_harness import EmptyMode
from sampled_ops import sample_every_op
from torch import Tensor

import memwatch

_GPU_ONLY = "jiterator"
_REPEATS = 20
_DEEP_EVERY = 50  # a deep search takes 10 times as long as a near one


@functools.cache
def entries(device: str = "cpu") -> list[Any]:
    """Return the entries of the database that have float32 samples on a device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_utils
        from torch.testing._internal.common_methods_invocations import op_db
    common_utils.extract_test_fn = lambda: None  # for each sample it would look all calls and modules through
    return [
        op
        for op in op_db
        if torch.float32 in op.supported_dtypes(device) and not op.name.startswith(_GPU_ONLY)
    ]


def name_of(op: Any) -> str:
    """Name an entry, its variant included."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def programs(op: Any, count: int, device: str = "cpu") -> Iterator[Callable[[], Any]]:
    """Return up to `count` programs of an entry, spread over its samples."""
    torch.default_generator.manual_seed(0)
    samples = list(op.sample_inputs(device, torch.float32, requires_grad=op.supports_autograd))
    step = max(1, len(samples) // count)
    for sample in itertools.islice(samples, 0, step * count, step):
        yield _program(op, sample)


def _program(op: Any, sample: Any) -> Callable[[], Any]:
    def program() -> Any:
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)
        given = _fresh((sample.input, sample.args, sample.kwargs))
        out = op(given[0], *given[1], **given[2])
        wanted = [tensor for tensor in _tensors(sample.output_process_fn_grad(out)) if tensor.requires_grad]
        leaves = [tensor for tensor in _tensors(given) if tensor.requires_grad and tensor.is_leaf]
        if not wanted or not leaves:
            return out
        grads = torch.autograd.grad(
            wanted, leaves, [torch.ones_like(each) for each in wanted], allow_unused=True
        )
        return out, grads

    return program


def _fresh(value: Any) -> Any:
    """Copy a sample, so that a run never sees changes of another run."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(_fresh(item) for item in value)
    if type(value) is dict:
        return {key: _fresh(item) for key, item in value.items()}
    return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors(item)]
    return []


def compare(op: Any, intercept: str, count: int, device: str = "cpu", *, sampled: bool = False) -> str:
    """Run an entry's samples plainly and under one profile.

    Return `equal`, `different`, or why they cannot be compared.

    `as under any mode` means that the result differs from the plain result, but equals the result under an empty
    dispatch mode. Then the difference comes from ATen.

    Args:
        op: the entry.
        intercept: how memwatch intercepts the ops.
        count: the largest number of samples to run.
        device: their device.
        sampled: whether memwatch takes a holder sample after every op.
    """
    samples = list(programs(op, count, device))
    _results(samples)  # first-time effects: caches, warnings given once
    plain, again = _results(samples), _results(samples)
    if not samples:
        return "no sample"
    if plain != again:
        return "not repeatable"
    sampling = sample_every_op(deep_every=_DEEP_EVERY) if sampled else contextlib.nullcontext()
    with sampling, memwatch.profile(intercept=intercept, stacks=False, holders=sampled):
        observed = _results(samples)
    if observed == plain:
        return "equal"
    if intercept == "mode":
        with EmptyMode():
            if observed == _results(samples):
                return "as under any mode"
    repeats = all(_results(samples) == plain for _ in range(_REPEATS))
    return "different" if repeats else "not repeatable"  # as LAPACK's lstsq, by the alignment of its memory


def _results(samples: list[Callable[[], Any]]) -> list[Any]:
    results = []
    for program in samples:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = freeze(program())
            results.append((result, [(each.category, str(each.message)) for each in caught]))
        except Exception as error:
            results.append((type(error), str(error)))
    return results
