"""When an allocation fails, the program ends as it does without memwatch, and the report is there.

These are samples. `python tests/integration/failing_allocations.py KIND RECORDER INTERCEPT` lets every allocation of a
step fail in turn; `MEMWATCH_FAILING_EVERY=1` makes these tests do the same.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

HERE = pathlib.Path(__file__).parent
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks, and limits the address space"
)


@pytest.fixture(scope="session")
def shim(tmp_path_factory):
    """Compile the library that lets allocations fail."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("shim") / "failing.so"
    include = sysconfig.get_path("include")
    source = HERE / "failing_allocations.c"
    flags = ["-shared", "-fPIC", "-fno-builtin", "-fexceptions", "-O1", f"-I{include}", "-ldl"]
    subprocess.run([compiler, str(source), "-o", str(library), *flags], check=True)
    return library


def failing(*arguments, every, library=None):
    """Let a sample of the allocations fail; return the results of the script."""
    every = os.environ.get("MEMWATCH_FAILING_EVERY", every)
    preload = [] if library is None else ["env", f"LD_PRELOAD={library}"]
    command = [
        *preload,
        sys.executable,
        str(HERE / "failing_allocations.py"),
        *arguments,
        "--every",
        str(every),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.whole
@pytest.mark.parametrize(("recorder", "intercept"), [("native", "key"), ("python", "key")])
def test_a_failing_block_of_the_allocator_is_the_programs_own_error(shim, recorder, intercept):
    found = failing("torch", recorder, intercept, every=41, library=shim)
    assert found["count"] > 50
    assert found["different"] == []


@pytest.mark.parametrize("kind", ["native", "objects"])
def test_the_program_does_not_notice_that_the_native_recorder_has_no_memory(shim, kind):
    found = failing(kind, "native", "key", every={"native": 101, "objects": 401}[kind], library=shim)
    assert found["count"] > 100
    assert found["different"] == []


def test_the_program_does_not_notice_that_a_dispatch_mode_has_no_memory(shim):
    """Of these allocations, one made the result of an op, and one a bound `__instancecheck__`. Both errors got out."""
    found = failing("objects", "native", "mode", "--first", "761", every=600, library=shim)
    assert found["count"] > 1000
    assert found["different"] == []


def test_the_program_does_not_notice_that_a_sample_of_holders_has_no_memory(shim):
    """The third allocation is the first walk along a graph. It once ended the process."""
    found = failing("native", "native", "key", "--holders", "--first", "3", every=101, library=shim)
    assert found["count"] > 100
    assert found["different"] == []


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_the_program_does_not_notice_a_memory_error_in_a_line_of_memwatch(recorder):
    found = failing("lines", recorder, "key", every={"native": 901, "python": 3001}[recorder])
    assert found["count"] > 1000
    assert found["different"] == []


FILLS_MEMORY = """
import resource, sys
import torch
import memwatch

NO_LIMIT = (resource.RLIM_INFINITY,) * 2

def fill(nbytes):
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    kept = []
    resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), NO_LIMIT[1]))
    try:
        while True:
            kept.append(torch.empty(nbytes, dtype=torch.uint8))
    except (RuntimeError, MemoryError):
        count = len(kept)
        kept.clear()
    assert count > 100
    assert torch.ones(10).sum() == 10
    resource.setrlimit(resource.RLIMIT_AS, NO_LIMIT)

try:
    torch.empty(1 << 60)
except RuntimeError:
    pass  # the first error of a process takes memory of its own
nbytes = int(sys.argv[2])
with memwatch.profile(intercept=sys.argv[1]) as prof:
    fill(nbytes)
assert prof.peak_bytes > 10 << 20
"""


@pytest.mark.parametrize("nbytes", ["65536", "1024"])
@pytest.mark.parametrize(("intercept", "native"), [("key", "1"), ("mode", "1"), ("key", "0"), ("mode", "0")])
def test_a_program_that_fills_memory_with_small_tensors_goes_on(fresh_python, intercept, native, nbytes):
    """Every free is reported from a destructor, where an exception of C++ ends the process."""
    run = fresh_python(FILLS_MEMORY, intercept, nbytes, MEMWATCH_NATIVE=native)
    assert run.returncode == 0, run.stderr


def test_a_function_gets_its_saved_tensors_if_torch_has_no_memory_for_a_python_object(monkeypatch):
    """One of 986 failing allocations reached the program: torch's error is no MemoryError."""
    import torch

    import memwatch
    from memwatch.record import saved_tensors

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    def without_memory(*_, **__):
        raise torch.OutOfMemoryError("Failed to allocate a Tensor object")

    x = torch.ones(3, requires_grad=True)
    with memwatch.profile():
        loss = Square.apply(x).sum()
        monkeypatch.setattr(saved_tensors, "autograd_state", without_memory)
        loss.backward()
    assert x.grad.tolist() == [2, 2, 2]
