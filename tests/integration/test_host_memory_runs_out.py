"""The host's memory really runs out, by a limit on the address space: at each large allocation of a step in turn."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space")

STEPS = """
import resource, sys
import torch
import memwatch

LARGE, SPARE = 128 << 20, int(sys.argv[2]) << 20  # no page of them is ever touched
NO_LIMIT = (resource.RLIM_INFINITY,) * 2

class Blank(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        return torch.empty_like(ctx.saved_tensors[0])

def step(data, large):
    if large is not None:
        with open("/proc/self/statm") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + large * LARGE + SPARE, NO_LIMIT[1]))
    torch.rand(100)
    result = Blank.apply(Blank.apply(data))
    result.backward(torch.empty_like(result))

def failure(run, data, large):
    state = torch.get_rng_state()
    try:
        run(data, large)
    except RuntimeError as error:
        resource.setrlimit(resource.RLIMIT_AS, NO_LIMIT)
        left = torch.get_rng_state(), data._version, data.grad is None
        return type(error), str(error), *left, getattr(error, "__notes__", [])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, NO_LIMIT)
        torch.set_rng_state(state)
        data.grad = None

step(torch.zeros(1, requires_grad=True), None)  # the first backward imports parts of torch
data = torch.empty(LARGE // 4, requires_grad=True)
for large in range(10):
    plain = failure(step, data, large)
    seen = failure(memwatch.profile(intercept=sys.argv[1])(step), data, large)
    if plain is None or seen is None:
        break
    assert torch.equal(seen[2], plain[2])
    assert (*seen[:2], *seen[3:5]) == (*plain[:2], *plain[3:5]), (plain, seen)
    (note,) = seen[5]
    assert "were live on cpu when memory ran out, and the program requested 128.00 MiB more" in note, note
    step(data, None)
    assert data.grad is not None
    data.grad = None
assert large == 4 and plain is seen is None, (large, plain, seen)
run = memwatch.profile("run.memwatch")
_, text, *_, (note,) = failure(run(step), data, 1)
assert "can't allocate memory: you tried to allocate 134217728 bytes" in text
assert "run.memwatch" in note and run.page.stat().st_size > 10_000
assert memwatch.load("run.memwatch").peak_bytes == run.peak_bytes > LARGE
"""


@pytest.mark.parametrize(
    ("intercept", "native", "spare"), [("key", "1", "64"), ("key", "1", "1"), ("mode", "0", "1")]
)
def test_an_allocator_without_memory_at_any_large_allocation_of_a_step(
    fresh_python, intercept, native, spare
):
    """Type, words and the program's state are those without memwatch, the note is there, and the next step runs.

    The spare 1 MiB has no room for the note, so it is made in the memory that the block reserved for it.
    """
    run = fresh_python(STEPS, intercept, spare, MEMWATCH_NATIVE=native)
    assert run.returncode == 0, run.stderr


NO_ROOM = """
import sys
import pytest
import torch
import memwatch
import memwatch.profile  # the function of this name covers it

profile = sys.modules["memwatch.profile"]

def fails(*args, **kwargs):
    raise MemoryError("no room")

def note_of_an_error():
    with pytest.raises(RuntimeError, match="can't allocate memory") as caught, memwatch.profile():
        torch.empty(1 << 50)
    assert torch.zeros(3).sum() == 0
    (note,) = caught.value.__notes__
    return note

profile.breakdown = fails
note = note_of_an_error()
assert note == "memwatch: memory ran out, and memwatch could not list the live memory: MemoryError: no room", note
profile.Session._flush = fails
note = note_of_an_error()
assert note.endswith("ending the recording failed: MemoryError: no room"), note
with pytest.raises(MemoryError, match="no room"), memwatch.profile():  # no error of the program's hides it
    pass
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 prints notes")
def test_an_error_keeps_its_type_and_has_a_note_where_memwatch_itself_has_no_room(fresh_python):
    """A failure while a block ends or is reported becomes a note on the program's error."""
    run = fresh_python(NO_ROOM)
    assert run.returncode == 0, run.stderr
