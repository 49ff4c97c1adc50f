"""Holders in C++ that Python does not show. Reference counts prove them; Python objects are never reported so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

import memwatch

LARGE = (512, 513)
LARGE_BYTES = 512 * 513 * 4


def many_looks(count=8):
    """Make memory again and again, each time more: every time is worth a look."""
    kept = []
    for number in range(count):
        kept.append(torch.full((300, 200 + 100 * number), 1.0))
    return kept


def holders_of_large(prof):
    """Return the holders of the large storages at the peak, with their evidence."""
    rows = prof.at_peak[prof.at_peak["nbytes"] == LARGE_BYTES]
    return list(zip(rows["holder"], rows["holder_evidence"], strict=True))


def test_a_view_that_python_has_is_not_said_to_be_in_c():
    """C++ alone has the base of a view, and the view lies on an evaluation stack."""

    def consume(view, rest):
        return view.sum() + rest[0].sum()

    with memwatch.profile() as prof:
        consume(torch.full(LARGE, 1.0).view(-1), many_looks())
    ((holder, _),) = holders_of_large(prof)
    assert "Python shows no reference" not in holder


def test_an_array_that_took_memory_over_is_told_where_it_lies_now():
    """A variable held it at one sample, and a list at the next. The holder that is gone does not count as seen."""
    kept = []

    def run():
        array = np.from_dlpack(torch.full(LARGE, 1.0))
        more = many_looks()
        kept.append(array)
        del array
        more += many_looks()
        return torch.full((3000, 3000), 1.0)

    with memwatch.profile() as prof:
        result = run()
    assert len(result)
    assert all("`kept`" in holder or evidence != "seen" for holder, evidence in holders_of_large(prof)), (
        holders_of_large(prof)
    )
    assert len(holders_of_large(prof)) == 1


def test_an_argument_is_one_where_a_comprehension_has_a_variable_of_that_name():
    """The argument and the variable have the same function and line."""

    def step(x, others):
        return [more(x) for x in others] + [more(x)]

    def more(_):
        return many_looks(4)

    with memwatch.profile() as prof:
        step(torch.full(LARGE, 1.0), [torch.zeros(3)] * 3)
    assert all("local variable of `step`" not in holder for holder, _ in holders_of_large(prof))
    assert len(holders_of_large(prof)) == 1


@pytest.fixture
def group(tmp_path):
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_result_of_each_collective_is_told_by_its_future(group):
    """A future makes the list of its tensors anew at each request."""

    def begun():
        work = dist.all_reduce(torch.full(LARGE, 1.0), async_op=True)
        work.wait()
        return work.get_future()

    with memwatch.profile() as prof:
        futures = [begun() for _ in range(3)]
        more = many_looks()
    assert len(more)
    held = [holder for holder, _ in holders_of_large(prof)]
    assert len(held) == len(futures)
    assert all("result of `Future`, reached from `futures`" in holder for holder in held), held
