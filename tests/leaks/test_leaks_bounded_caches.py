"""A bounded cache may keep its results; the objects that were arguments of its calls it keeps by mistake."""

from __future__ import annotations

import functools

import pytest
import torch

from memwatch.kinds.leaks import Remedy
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.words.leaks import advice


class Encoder:
    def __init__(self):
        self.weight = torch.ones(1000)

    @functools.lru_cache(maxsize=32)  # noqa: B019 - the mistake under test
    def table(self, size):
        return torch.ones(size)

    @functools.lru_cache(maxsize=1)  # noqa: B019
    def last_table(self, size):
        return torch.ones(size)


ENCODER = Encoder()
SIZES = iter(range(1, 10_000))


@functools.lru_cache(maxsize=32)
def of_tensor(tensor):
    return tensor.numel()


@functools.lru_cache(maxsize=32)
def encoder_and_size(size):
    return Encoder(), size


def new_encoder():
    Encoder().table(3)


def new_encoder_in_a_cache_of_one():
    Encoder().last_table(3)


def new_size():
    ENCODER.table(next(SIZES))


def new_tensor():
    of_tensor(torch.ones(100))


def new_pair():
    encoder_and_size(next(SIZES))


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    for cached in (Encoder.table, Encoder.last_table, of_tensor, encoder_and_size):
        cached.cache_clear()
    Encoder().last_table(3)


@pytest.mark.parametrize("runs", [3, 5, "auto"])
def test_a_cached_method_keeps_each_object_up_to_its_bound(runs):
    (leak,) = find_leaks(new_encoder, runs=runs)
    assert (leak.nbytes, leak.count, leak.every) == (4000, 1, 1)
    assert "maxsize 32" in "\n".join(leak.path)
    assert leak.advice == advice(Remedy.CACHED_METHOD, with_graph=False)


@pytest.mark.parametrize("fn", [new_encoder_in_a_cache_of_one, new_size, new_tensor, new_pair])
@pytest.mark.parametrize("runs", [3, 5, "auto"])
def test_what_a_bounded_cache_is_made_to_keep_is_no_leak(fn, runs):
    """One object at a time, results, and tensors that the program gave to the cache."""
    assert find_leaks(fn, runs=runs) == []


def test_one_pass_tells_an_object_that_a_cached_method_keeps():
    with pytest.raises(TensorLeakError, match=r"lru_cache of Encoder\.table"), check_leaks():
        new_encoder()


@pytest.mark.parametrize("fn", [new_encoder_in_a_cache_of_one, new_size, new_tensor, new_pair])
def test_one_pass_allows_what_a_bounded_cache_is_made_to_keep(fn):
    with check_leaks():
        fn()
