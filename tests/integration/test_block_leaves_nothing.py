"""However a block ends, torch and Python are as they were, and the capture can be read."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest
import torch
from block_state import block_state, changes, module_names, replaced_functions
from kept_values import Kept, forget
from torch.utils._python_dispatch import TorchDispatchMode

import memwatch
from memwatch.record import interception


class Failing(torch.nn.Module):
    """Raises in a module inside another, on request."""

    def __init__(self, error=None):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
        self.error = error

    def forward(self, x):
        y = self.inner(x).relu()
        if self.error is not None:
            raise self.error
        return y


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        raise ArithmeticError("backward")


class FailingStep(torch.optim.SGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            group["lr"] = "not a number"


def step(error=None):
    model = torch.nn.Sequential(Failing(), Failing(error))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()


def fail_in_step():
    model = torch.nn.Linear(8, 8)
    optimizer = FailingStep(model.parameters())
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()


def profile_inside():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        step()


def modes_inside():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode(), torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x), torch.autocast("cpu"):
        step()


ENDINGS = {
    "quietly": (step, None),
    "with an error in a module": (lambda: step(ValueError("forward")), ValueError),
    "with an interrupt": (lambda: step(KeyboardInterrupt()), KeyboardInterrupt),
    "with an exit": (lambda: step(SystemExit(3)), SystemExit),
    "with an error in an op": (lambda: torch.ones(2, 3) @ torch.ones(2, 3), RuntimeError),
    "with an error in backward": (
        lambda: FailingBackward.apply(torch.ones(3, requires_grad=True)).sum().backward(),
        ArithmeticError,
    ),
    "with an error in an optimizer": (fail_in_step, TypeError),
    "after a torch profiler": (profile_inside, None),
    "after other modes": (modes_inside, None),
    "without an op": (lambda: None, None),
}
OPTIONS = {
    "plain": {},
    "with a mode": {"intercept": "mode"},
    "with a key": {"intercept": "key"},
    "for replay": {"replay": True},
    "without the allocator": {"allocator": False},
    "without stacks": {"stacks": False},
    "into a file": {"path": "x.memwatch"},
}


@pytest.fixture(autouse=True, scope="module")
def warmed_up():
    """Load the modules that the first block loads lazily. Apart from them, even the first block changes nothing."""
    torch.set_num_threads(1)
    before = block_state()
    for options in OPTIONS.values():
        if "path" not in options:
            with memwatch.profile(**options):
                profile_inside()
                modes_inside()
    # importing parts of torch changes these two, once
    assert set(changes(before, block_state())) <= {"warnings", "environment"}


def generator_after(work):
    """Return the random state after the work without memwatch, and restore the state before it."""
    torch.manual_seed(0)
    with contextlib.suppress(BaseException):
        work()
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    return state


def check_nothing_left(before):
    for thread in threading.enumerate():
        if thread.name.startswith("memwatch"):
            thread.join(10)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("memwatch")]
    assert not changes(before, block_state())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_block_leaves_nothing_behind(ending, options, tmp_path, monkeypatch):
    """Same state, same functions, the program's own error, and a capture that can be read."""
    monkeypatch.chdir(tmp_path)
    work, error = ENDINGS[ending]
    generator = generator_after(work)
    forget()
    before, functions = Kept(block_state()), Kept(module_names())
    prof = memwatch.profile(**OPTIONS[options])
    if error is None:
        with prof:
            work()
    else:
        with pytest.raises(error) as raised, prof:
            work()
        assert raised.type is error
        assert raised.value.__context__ is None
    assert torch.equal(torch.random.get_rng_state(), generator)
    check_nothing_left(before.value)
    assert not replaced_functions(functions.value)
    assert prof.peak_bytes >= prof.baseline_bytes
    assert "Peak" in prof.summary()
    assert len(prof.ops) > 0 or ending == "without an op"


def test_an_error_keeps_its_own_words_and_cause():
    """The exception that leaves the block is the object that was raised in it, with its cause."""
    error = ValueError("mine")
    cause = KeyError("why")
    with pytest.raises(ValueError, match="mine") as raised, memwatch.profile():
        raise error from cause
    assert raised.value is error
    assert raised.value.__cause__ is cause


def test_a_block_inside_a_block_is_refused_and_leaves_the_outer_one_whole():
    """One block at a time: any attempt to open a second gets an error, and the first block goes on."""
    before = block_state()
    with memwatch.profile() as outer:
        torch.ones(1000)
        for second in (memwatch.profile(), outer, memwatch.profile(intercept="mode")):
            with pytest.raises(memwatch.MemwatchError, match="already open"), second:
                pass
        torch.ones(2000)
    check_nothing_left(before)
    assert outer.peak_increase_bytes == 8000
    assert len(outer.ops) == 2


def test_a_profile_can_be_entered_again():
    """After its end a profile may record another block; it reads the last one."""
    prof = memwatch.profile()
    for count in (1000, 3000):
        with prof:
            torch.ones(count)
        assert prof.peak_increase_bytes == 4 * count


def test_reading_too_early_and_wrong_options_say_what_to_do():
    """The error has the next step, and comes before anything is switched on."""
    before = block_state()
    with pytest.raises(memwatch.MemwatchError, match="after its `with` block"):
        _ = memwatch.profile().peak_bytes
    with pytest.raises(memwatch.MemwatchError, match="inside an open"):
        memwatch.profile().step()
    for options, words in (
        ({"intercept": "magic"}, "intercept"),
        ({"path": "/nowhere/x.memwatch"}, "create it"),
    ):
        with pytest.raises(memwatch.MemwatchError, match=words), memwatch.profile(**options):
            pass
    check_nothing_left(before)


def test_a_decorated_function_records_every_call():
    """As a decorator it passes arguments, results and errors, and reads the last call."""
    prof = memwatch.profile()

    @prof
    def work(count, *, fail=False):
        """Docstring."""
        result = torch.ones(count)
        if fail:
            raise ValueError
        return result

    assert work.__doc__ == "Docstring."
    for count in (10, 20):
        assert len(work(count)) == count
        assert prof.peak_increase_bytes == 4 * count
    with pytest.raises(ValueError):  # noqa: PT011  # the very error raised above
        work(30, fail=True)
    assert prof.peak_increase_bytes == 120


def test_a_decorated_function_writes_its_last_call_into_its_file(tmp_path):
    """The file of a profile is of its last block; another profile does not overwrite it."""
    path = tmp_path / "calls.memwatch"
    work = memwatch.profile(path)(torch.ones)
    work(10)
    work(20)
    assert memwatch.load(path).peak_increase_bytes == 80
    with pytest.raises(memwatch.MemwatchError, match="exists"), memwatch.profile(path):
        pass


def test_a_decorated_coroutine_function_is_recorded_whole():
    """Its ops run when it is awaited, not when it is called."""
    prof = memwatch.profile()

    @prof
    async def work(count):
        first = torch.ones(count)
        await asyncio.sleep(0)
        return first + torch.ones(count)

    assert len(asyncio.run(work(100))) == 100
    assert prof.peak_increase_bytes == 1200


def test_a_generator_is_not_decorated():
    """A generator runs in pieces, so the decorator would record nothing. The error names another way."""

    async def batches():
        yield torch.ones(3)

    for function in (lambda: (yield), batches):
        with pytest.raises(
            memwatch.MemwatchError, match=r"is a generator.*put `with memwatch\.profile\(\):`"
        ):
            memwatch.profile()(function)


def test_a_first_import_inside_the_block_keeps_nothing_of_it(fresh_python):
    """Torch loads parts of itself at first use, here inside the block. They must not keep an object of the recorder."""
    code = """
    import gc, memwatch, torch
    from memwatch.record.session import Session
    with memwatch.profile():
        torch.optim.SGD(torch.nn.Linear(2, 2).parameters())
        from torch import compile as kept
        from torch.autograd.graph import disable_saved_tensors_hooks as kept_too
    gc.collect()
    print(sum(type(obj) is Session for obj in gc.get_objects()))
    with kept_too("no hooks here"):
        print(kept(lambda: 3, backend="eager")())
    """
    done = fresh_python(code)
    assert done.stdout.split() == ["0", "3"], done.stderr


@pytest.mark.parametrize("native", ["0", "1"])
def test_a_block_by_mode_registers_no_kernel(native, fresh_python):
    """Kernels for every op take a second to register, and a block that sees ops by a mode has no use for them."""
    code = """
    import memwatch, torch
    from memwatch.record import interception

    with memwatch.profile(intercept="mode"):
        torch.ones(3)
    assert interception._Registered.kernels is None
    """
    done = fresh_python(code, whole_end=True, MEMWATCH_NATIVE=native)
    assert done.returncode == 0, done.stderr


def test_kernels_that_could_not_be_registered_leave_none_on_the_key(monkeypatch):
    """The kernels that lay there before are off, so the next block puts them on again."""

    class Kernels:
        def __init__(self, error=None):
            self.error, self.count = error, 0

        def put(self):
            self.count += 1
            if self.error:
                raise self.error

        def take_off(self):
            pass

    monkeypatch.setattr(interception._Registered, "kernels", None)
    before = Kernels()
    interception.register(before)
    with pytest.raises(RuntimeError, match="no"):
        interception.register(Kernels(RuntimeError("no")))
    interception.register(before)
    assert before.count == 2


def test_another_tool_may_stand_in_for_module_calls_too(monkeypatch):
    """A tool from before the block sees every call.

    A tool that comes inside stays, and sees the calls of later blocks.
    """
    seen = []

    def standing_on(beneath, name):
        def call(self, *args, **kwargs):
            seen.append(name)
            return beneath(self, *args, **kwargs)

        return call

    net, calls = torch.nn.Linear(2, 2), torch.nn.Module
    monkeypatch.setattr(calls, "_call_impl", standing_on(calls._call_impl, "before"))
    with memwatch.profile() as prof:
        net(torch.ones(2))
        monkeypatch.setattr(calls, "_call_impl", standing_on(calls._call_impl, "inside"))
        net(torch.ones(2))
    assert list(prof.ops["module"]) == ["", "net"] * 2
    net(torch.ones(2))
    with memwatch.profile() as prof:
        net(torch.ones(2))
    net(torch.ones(2))
    assert list(prof.ops["module"]) == ["", "net"]
    assert seen == ["before", *["inside", "before"] * 4]


def test_a_recording_of_a_whole_program_is_let_go_when_it_ends():
    prof = memwatch.profile()
    prof.gives_way = True
    with prof:
        torch.ones(64)
    ended = weakref.ref(prof)
    del prof
    gc.collect()
    assert ended() is None
