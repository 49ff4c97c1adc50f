"""The host's memory really runs out, by a limit on the address space: at each large allocation of a step in turn."""

from __future__ import annotations

import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space")

STEPS = """
import resource, sys
import torch
import memwatch

LARGE, SPARE = 128 << 20, 64 << 20  # no page of them is ever touched
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

data = torch.empty(LARGE // 4, requires_grad=True)
for large in range(10):
    plain = failure(step, data, large)
    seen = failure(memwatch.profile(intercept=sys.argv[1])(step), data, large)
    if plain is None or seen is None:
        break
    assert torch.equal(seen[2], plain[2])
    assert (*seen[:2], *seen[3:5]) == (*plain[:2], *plain[3:5]), (plain, seen)
    (note,) = seen[5]
    assert "were live on cpu when memory ran out, and 128.00 MiB more were asked for" in note, note
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


@pytest.mark.parametrize(("intercept", "native"), [("key", "1"), ("mode", "0")])
def test_an_allocator_without_memory_at_any_large_allocation_of_a_step(fresh_python, intercept, native):
    """Type, words and the program's state are those without memwatch, the note is there, and the next step runs."""
    run = fresh_python(STEPS, intercept, MEMWATCH_NATIVE=native)
    assert run.returncode == 0, run.stderr
