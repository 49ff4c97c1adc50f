"""An exception of the program's signal handler reaches the program, whatever memwatch is doing.

`test_block_interrupted.py` has the handlers that raise a `BaseException`, such as Python's for Ctrl-C.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import gc
import inspect
import json
import os
import random
import signal
import sys
import threading
import weakref

import pytest
import torch
from lines_hit import FOLDER, SIGNAL, Shots
from torch import nn
from torch.utils.checkpoint import checkpoint

import memwatch
from memwatch._torch.modules import module_call
from memwatch.gc_pause import is_gc_paused
from memwatch.record import arguments, module_registry
from memwatch.record.harmless import uninterrupted
from memwatch.record.holders.sample import Sample
from memwatch.record.saved_tensors import hide_hooks
from memwatch.signal_handlers import raised_by_handler, raises_later

ERRORS = [TimeoutError, RuntimeError, KeyError]
ALARMS = 150
SHOTS = int(os.environ.get("MEMWATCH_SHOTS", "36"))
"""With 250 they are more than 1,000, which takes some minutes."""
SHOTS_AT_BLOCKS = 12


@pytest.fixture(params=["1", "0"], ids=["native", "python"])
def recorder(request, monkeypatch):
    """Choose the recorder."""
    monkeypatch.setenv("MEMWATCH_NATIVE", request.param)


@pytest.fixture
def handled():
    """Install a handler of the signal for the time of a test; Python drops errors of gc's callbacks."""
    before = {number: signal.getsignal(number) for number in (SIGNAL, signal.SIGALRM)}
    gc.disable()
    yield lambda handler, number=SIGNAL: signal.signal(number, handler)
    gc.enable()
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def swallowed(monkeypatch):
    """Give the list of the exceptions that Python could not raise."""
    found = []
    monkeypatch.setattr("sys.unraisablehook", lambda each: found.append(each.exc_value))
    return found


def notes(prof):
    return [note for note in prof.notes if note[0] == "recorder"]


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("error_class", ERRORS)
def test_no_exception_of_an_alarm_is_lost(error_class, handled, swallowed):
    """Each exception of a time limit ends the loop of small steps that it is for."""
    rung = []

    def ring(number, frame):
        rung.append(number)
        raise error_class("rung")

    handled(ring, signal.SIGALRM)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    rng = random.Random(0)
    caught = 0
    with memwatch.profile() as prof:
        for count in range(ALARMS // len(ERRORS)):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 2e-3))
                while len(rung) == count:
                    model(torch.ones(2, 4)).sum().backward()
            except error_class:
                caught += 1
    assert swallowed == []
    assert notes(prof) == []
    assert caught == len(rung) == ALARMS // len(ERRORS)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        hidden = checkpoint(torch.relu, self.first(x), use_reentrant=False)
        return Square.apply(self.second(hidden.view(-1, 8).t().t()))


def train(prof):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(2):
        net(torch.tensor([[1.0, 2.0, 3.0, 4.0]])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.randn(3).add_(1).resize_(5)
    prof.step()
    prof.flush()


@pytest.mark.usefixtures("recorder")
@pytest.mark.parametrize("options", [{}, {"replay": True}], ids=["profile", "replay"])
def test_no_exception_is_lost_at_any_line(options, handled, swallowed, tmp_path):
    """A handler may raise at each line of memwatch that a training runs: the capture stays readable."""
    shots = Shots(ERRORS)
    handled(shots.handle)
    plain = module_call()
    with memwatch.profile(tmp_path / "run.memwatch", **options) as prof:
        step = functools.partial(train, prof)
        for _ in range(6):
            step()
        # `no_grad` of torch may be left open by the exception, as in plain Python
        reached = shots.shoot_often(step, SHOTS, functools.partial(torch.set_grad_enabled, True))
    assert reached == shots.fired > SHOTS // 2
    assert swallowed == []
    assert notes(prof) == []
    assert not is_gc_paused()
    assert module_call() is plain
    assert prof.summary()


def test_a_block_with_replay_ends_after_a_handler_raised_while_an_input_was_kept(handled, monkeypatch):
    """An input that memwatch has no checksum of does not end the block with an error."""
    x, checksum = torch.ones(4), arguments.checksum

    def interrupted(storage):
        monkeypatch.setattr(arguments, "checksum", checksum)
        os.kill(os.getpid(), SIGNAL)
        return checksum(storage)

    def handle(number, frame):
        raise TimeoutError

    handled(handle)
    monkeypatch.setenv("MEMWATCH_NATIVE", "0")
    monkeypatch.setattr(arguments, "checksum", interrupted)
    with memwatch.profile(replay=True) as prof:
        with pytest.raises(TimeoutError):
            x.add(1)
        y = x.mul(2)
    assert memwatch.replay(memwatch.plan(prof)).identical
    assert y.tolist() == [2.0] * 4


@pytest.mark.usefixtures("recorder")
def test_a_block_is_off_after_its_entry_or_end_was_interrupted(handled, swallowed):
    """After a handler raised on entry or exit, no block is open and torch's functions are its own again."""
    shots = Shots(ERRORS)
    handled(shots.handle)
    model, plain, off = nn.Linear(4, 4), module_call(), []

    def block():
        with memwatch.profile():
            model(torch.ones(2, 4)).sum().backward()

    block()
    reached = shots.shoot_often(block, SHOTS_AT_BLOCKS, lambda: off.append(module_call() is plain))
    assert reached == shots.fired > SHOTS_AT_BLOCKS // 2
    assert all(off)
    assert swallowed == []
    block()


def test_handlers_wait_while_a_sample_is_taken(handled, monkeypatch):
    """A signal during a sample runs its handler after the sample, because it may change the searched objects."""
    events, take = [], Sample.take

    def slow(self, frame):
        events.append("begins")
        os.kill(os.getpid(), SIGNAL)
        take(self, frame)
        events.append("ends")

    def handle(number, frame):
        events.append("handled")
        raise TimeoutError

    handled(handle)
    monkeypatch.setattr(Sample, "take", slow)
    with memwatch.profile(), pytest.raises(TimeoutError):
        torch.ones(1 << 20)
    assert events == ["begins", "ends", "handled"]


def test_each_handler_that_waited_raises(handled):
    """Where two handlers waited, the second one raises where the program handles the exception of the first."""
    caught = []

    def handle(number, frame):
        raise TimeoutError(number)

    handled(handle)
    handled(handle, signal.SIGALRM)

    def wait():
        with uninterrupted():
            os.kill(os.getpid(), SIGNAL)
            os.kill(os.getpid(), signal.SIGALRM)
            caught.append("inside")

    try:
        try:
            wait()
        except TimeoutError as error:
            caught.append(error.args[0])
            for _ in range(3):
                pass
    except TimeoutError as error:
        caught.append(error.args[0])
    assert caught[0] == "inside"
    assert sorted(caught[1:]) == sorted([SIGNAL, signal.SIGALRM])


def test_handlers_are_put_back_at_the_limit_of_recursion(handled):
    """Leaving may not need more levels of calls than entering did, or the program loses its handlers for good."""
    handled(by_function)
    before, outcomes = sys.getrecursionlimit(), set()

    def wait():
        with uninterrupted():
            return "entered"

    depth = len(inspect.stack(0))
    for room in range(1, 40):
        try:
            sys.setrecursionlimit(depth + room)
            outcomes.add(wait())
        except (RecursionError, ctypes.ArgumentError):  # ctypes turns the one into the other
            outcomes.add("refused")
        finally:
            sys.setrecursionlimit(before)
        assert signal.getsignal(SIGNAL) is by_function, room
    assert outcomes == {"entered", "refused"}


def action_of(number):
    """Return the system's action for a signal: the handler in C, and the flags, as glibc lays them out."""
    found = ctypes.create_string_buffer(256)
    assert ctypes.CDLL(None).sigaction(number, None, found) == 0
    return found.raw[:8], found.raw[136:140]


def test_only_the_table_of_python_changes_while_handlers_wait(handled):
    """The program may have a C handler above Python's, and have system calls begin again."""
    handled(LIMIT)
    plain = action_of(SIGNAL)
    signal.siginterrupt(SIGNAL, False)
    faulthandler.register(SIGNAL, chain=True)
    try:
        before = action_of(SIGNAL)
        with uninterrupted():
            within = action_of(SIGNAL)
        assert before == within == action_of(SIGNAL) != plain
    finally:
        faulthandler.unregister(SIGNAL)


SOURCE = """
def run(act):
    try:
        act()
        for _ in range(9):
            pass
    except Exception as error:
        return raised_by_handler(error)
"""


def in_memwatch(act):
    """Call a function from code that counts as memwatch's.

    Return its exception after memwatch's handling, or None.
    """
    namespace = {"raised_by_handler": raised_by_handler}
    exec(compile(SOURCE, f"{FOLDER}made_by_a_test.py", "exec"), namespace)
    return namespace["run"](act)


def fail(*args):
    raise TimeoutError


def by_function(number, frame):
    raise RuntimeError


def by_helper(number, frame):
    fail()


def by_other_error(number, frame):
    try:
        fail()
    except TimeoutError as error:
        raise KeyError from error


def without_its_frame(number, frame):
    del frame
    raise KeyError


def without_arguments(number, frame):
    del frame, number
    raise KeyError


def with_other_values(number, frame):
    number, frame = signal.Signals(number).name, frame.f_lineno
    raise KeyError(number, frame)


def with_default_restored(number, frame):
    signal.signal(number, signal.SIG_DFL)
    del frame
    raise KeyError


def decorated(*args, **kwargs):
    return by_function(*args, **kwargs)


def with_context(context, number, frame):
    raise RuntimeError(context)


class Meta(type):
    def __getattribute__(cls, name):
        raise AssertionError("the program's code runs")


class Limit(metaclass=Meta):
    def __getattribute__(self, name):
        raise AssertionError("the program's code runs")

    def __call__(self, number, frame):
        raise TimeoutError

    def method(self, number, frame):
        raise TimeoutError

    @classmethod
    def of_class(cls, *args):
        raise TimeoutError


LIMIT = Limit()
HANDLERS = {
    "function": by_function,
    "lambda": lambda *_: fail(),
    "helper": by_helper,
    "raised from another": by_other_error,
    "no frame": without_its_frame,
    "no arguments": without_arguments,
    "other values": with_other_values,
    "default restored": with_default_restored,
    "decorated": decorated,
    "partial": functools.partial(with_context, "a limit"),
    "instance": LIMIT,
    "bound method": type.__dict__["__dict__"].__get__(Limit)["method"].__get__(LIMIT),
    "partial of an instance": functools.partial(LIMIT),
    "class method": type.__dict__["__dict__"].__get__(Limit)["of_class"].__get__(None, Limit),
}


@pytest.mark.parametrize("kind", HANDLERS)
def test_each_kind_of_handler_is_recognised(kind, handled):
    handled(HANDLERS[kind])
    assert in_memwatch(functools.partial(os.kill, os.getpid(), SIGNAL)) is True


def own_key_error():
    return in_memwatch(functools.partial({}.__getitem__, "missing"))


def error_of_python():
    return in_memwatch(functools.partial(json.loads, "{"))


def error_of_torch():
    return in_memwatch(functools.partial(torch.add, torch.ones(2), torch.ones(3)))


def error_of_a_call_with_a_number():
    return in_memwatch(functools.partial(fail, int(SIGNAL), "no frame"))


def error_of_a_call_with_a_frame():
    return in_memwatch(functools.partial(fail, (), sys._getframe()))


TWINS = [
    own_key_error, error_of_python, error_of_torch, error_of_a_call_with_a_number, error_of_a_call_with_a_frame,
]  # fmt: skip


@pytest.mark.parametrize("twin", TWINS)
def test_errors_of_memwatch_are_not_taken_for_a_handlers(twin, handled):
    handled(by_function)
    assert twin() is False


class StoppedError(Exception):
    """An exception that another thread of the program raises in this one."""


def test_an_exception_of_the_program_that_a_thread_sends_is_recognised():
    """An exception of one of Python's own classes cannot be distinguished from an error of memwatch."""
    send = ctypes.pythonapi.PyThreadState_SetAsyncExc
    here = ctypes.c_ulong(threading.get_ident())
    assert in_memwatch(functools.partial(send, here, ctypes.py_object(StoppedError))) is True
    assert in_memwatch(functools.partial(send, here, ctypes.py_object(ValueError))) is False


def test_an_error_of_memwatch_is_noted_though_a_handler_is_installed(handled, monkeypatch):
    """The twin of the tests above: the program's handler does not run, and the error is memwatch's own."""
    handled(by_function)
    monkeypatch.setattr(module_registry.ModuleRegistry, "meet", fail)
    with memwatch.profile() as prof:
        nn.Linear(4, 4)(torch.ones(4, 4))
    assert [text for _, text in notes(prof)] == ["Linear is not recorded whole: TimeoutError: "]


class Referent:
    """Something to refer to weakly."""


def test_what_is_raised_in_a_callback_is_raised_after_it(handled, swallowed):
    """Python only prints an error of a weak reference's callback."""
    handled(by_function)

    @raises_later
    def callback(_):
        os.kill(os.getpid(), SIGNAL)

    referents = [Referent()]
    reference = weakref.ref(referents[0], callback)
    with pytest.raises(RuntimeError):
        referents.clear()
    assert reference() is None
    assert swallowed == []


@pytest.mark.usefixtures("handled")
def test_no_frame_runs_when_the_last_pack_goes():
    """A handler cannot run where torch's own attributes are put back."""
    covered = "saved_tensors" in vars(torch.autograd.function.BackwardCFunction)  # by packs of another test
    keeper = hide_hooks(weakref.ref)
    called = []
    sys.setprofile(lambda frame, event, arg: called.append(frame.f_code) if event == "call" else None)
    try:
        del keeper
    finally:
        sys.setprofile(None)
    assert called == []
    assert ("saved_tensors" in vars(torch.autograd.function.BackwardCFunction)) is covered


@pytest.mark.usefixtures("recorder")
def test_what_a_handler_raises_while_a_saved_tensor_is_noted_reaches_the_program(
    handled, swallowed, monkeypatch
):
    """For a sparse tensor both recorders call Python, where a handler may run."""
    import memwatch.record.native.recorder
    import memwatch.record.python.packs
    from memwatch.record import saved_tensors

    original, left = saved_tensors.saved_storage, [1]

    def interrupted(*arguments):
        if left:
            left.pop()
            signal.raise_signal(SIGNAL)
        return original(*arguments)

    for module in list(sys.modules.values()):
        if getattr(module, "saved_storage", None) is original:
            monkeypatch.setattr(module, "saved_storage", interrupted)

    def handler(number, frame):
        raise TimeoutError("of the program")

    handled(handler)
    sparse = torch.eye(3).to_sparse()
    x = torch.ones(3, 3, requires_grad=True)
    with memwatch.profile() as prof:
        with pytest.raises(TimeoutError, match="of the program"):
            torch.sparse.mm(sparse, x)
        torch.sparse.mm(sparse, x).sum().backward()
    assert left == swallowed == []
    assert notes(prof) == []
