"""A block in a generator: suspended, left out of order, closed late or by the collector."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from block_state import block_state, changes
from torch.utils._python_dispatch import TorchDispatchMode

import memwatch


class Counting(TorchDispatchMode):
    """Counts ops."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def unchanged():
    """Check that the test changes no state of torch."""
    torch.set_num_threads(1)
    with memwatch.profile(), Counting():
        torch.ones(1)
    with memwatch.profile(intercept="mode"):
        torch.ones(1)
    before = block_state()
    yield
    assert not changes(before, block_state())


def batches(prof, count=3):
    with prof:
        for number in range(count):
            yield torch.ones(1000 * (number + 1))


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_a_block_records_while_its_generator_is_suspended(intercept):
    """The caller's code between two items is inside the block. Its code after the last item is not."""
    prof = memwatch.profile(intercept=intercept)
    for batch in batches(prof):
        batch.add(1)
    torch.ones(50_000)
    assert prof.ops["name"].tolist() == ["aten.ones.default", "aten.add.Tensor"] * 3
    assert prof.peak_increase_bytes < 200_000


@pytest.mark.parametrize("intercept", ["key", "mode"])
@pytest.mark.parametrize("how", ["close", "collect", "throw"])
def test_a_suspended_block_ends_with_its_generator(how, intercept):
    """Closing, dropping or failing a generator ends the block in it, and the capture can be read."""
    prof = memwatch.profile(intercept=intercept)
    generator = batches(prof)
    next(generator)
    if how == "close":
        generator.close()
    elif how == "throw":
        with pytest.raises(KeyError):
            generator.throw(KeyError("outside"))
    else:
        del generator
        gc.collect()
    assert prof.ops["name"].tolist() == ["aten.ones.default"]
    with memwatch.profile():
        pass


@pytest.mark.parametrize("intercept", ["key", "mode"])
def test_modes_and_hooks_entered_meanwhile_stay_when_the_block_ends_first(intercept):
    """A mode and saved-tensor hooks entered after the block work on when the block ends before them."""
    prof = memwatch.profile(intercept=intercept)
    generator = batches(prof)
    next(generator)
    packed = []
    counting = Counting()
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(1) or x, lambda x: x)
    with counting, hooks:
        generator.close()
        before, saved = counting.seen, len(packed)
        torch.ones(3, requires_grad=True).exp()
        assert counting.seen > before
        assert len(packed) > saved
    assert len(prof.ops) == 1


def test_modes_and_hooks_entered_before_may_end_inside_the_block():
    """A mode and saved-tensor hooks entered before the block may end while it is open; it records on."""
    prof = memwatch.profile()
    generator = batches(prof)
    counting = Counting()
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with counting, hooks:
        next(generator)
    seen = counting.seen
    torch.ones(3, requires_grad=True).exp()
    generator.close()
    assert counting.seen == seen
    assert prof.ops["name"].tolist()[-2:] == ["aten.ones.default", "aten.exp.default"]


def test_a_block_open_when_another_thread_asks_is_refused():
    """The block belongs to the process: opening one in another thread is refused, too."""
    errors = []

    def other():
        try:
            with memwatch.profile():
                pass
        except memwatch.MemwatchError as error:
            errors.append(str(error))

    with memwatch.profile():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(errors) == 1
    assert "already open" in errors[0]
