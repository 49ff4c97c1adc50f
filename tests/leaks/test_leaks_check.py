"""check_leaks: what one pass leaves behind, as a context manager and as a decorator."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import copy
import ctypes
import gc
import pickle
import threading
import traceback
import warnings
import weakref

import pytest
import torch
from torch import nn

from memwatch.errors import MemwatchError
from memwatch.kinds.edges import EdgeKind
from memwatch.leaks import TensorLeakError, check, check_leaks, find_leaks
from memwatch.words.leaks import MAY_BE_FILLING

PARKED: dict[str, torch.Tensor] = {}
LAYER = torch.nn.Linear(4, 4)
WEIGHT = torch.randn(16, 16, requires_grad=True)


def leaks_of(block):
    """Run a function in a checked block and return its leaks."""
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        block()
    return caught.value.leaks


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    yield
    PARKED.clear()


def park():
    PARKED["output"] = WEIGHT.exp()


def test_a_tensor_parked_in_a_global_is_retained_even_if_a_second_pass_would_replace_it():
    """One pass is enough to accuse: the pass ends, the tensor stays."""
    (leak,) = leaks_of(park)
    assert leak.kind == "retained"
    assert leak.nbytes == 16 * 16 * 4
    assert leak.count == 1
    assert (leak.edges[0].kind, leak.edges[0].name) == (EdgeKind.GLOBAL, "PARKED")
    assert "test_leaks_check.py" in leak.site
    assert leak.site.endswith(" park")


def test_names_bound_in_the_block_are_the_blocks_own():
    """After `y = ...` inside the block, neither y nor its value is a leak."""
    with check_leaks():
        y = WEIGHT.exp()
        several = [y, (WEIGHT * 2).sum()]
    assert len(several) == 2


def test_a_list_from_before_the_block_is_a_holder():
    """A local of the caller that existed before the block and grew in it is reported by name."""
    history = []
    with pytest.raises(TensorLeakError, match=r"`history`.*test_a_list_from_before"), check_leaks():
        history.append(WEIGHT.exp())


def test_an_own_name_does_not_excuse_another_holder():
    """A tensor that is both a local of the block and parked elsewhere is reported for the parking."""

    def block():
        with check_leaks():
            y = WEIGHT.exp()
            PARKED["output"] = y

    with pytest.raises(TensorLeakError, match="PARKED"):
        block()


def test_cycles_are_reported_without_waiting_for_gc():
    """A cycle made in one pass is found, with the edge to cut."""

    def block():
        ring = [torch.randn(8)]
        ring.append(ring)

    (leak,) = leaks_of(block)
    assert leak.kind == "cycle"
    assert leak.held_s >= 0


def test_an_exception_in_the_block_passes_through_when_nothing_leaks():
    """The in-flight exception may hold the frames of the block."""

    def fails():
        activations = WEIGHT.exp()
        raise ValueError(tuple(activations.shape))

    with pytest.raises(ValueError, match="16"), check_leaks():
        fails()


def test_a_leak_beside_an_exception_is_chained_to_it():
    """The exception of the body is the cause of the leak error, with its own traceback."""

    @check_leaks()
    def block():
        park()
        raise KeyError("lost")

    with pytest.raises(TensorLeakError) as caught:
        block()
    assert isinstance(caught.value.__cause__, KeyError)
    assert "KeyError" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_exits_are_never_replaced(kind):
    """Leaving the program is not the time to accuse."""

    @check_leaks()
    def block():
        park()
        raise kind

    with pytest.raises(kind):
        block()


def test_the_decorator_keeps_the_result_and_the_signature():
    """The result of the function belongs to its caller."""

    @check_leaks()
    def forward(x, *, scale=2.0):
        """Scale."""
        return (x * scale).exp()

    assert forward(WEIGHT).shape == (16, 16)
    assert forward.__name__ == "forward"
    assert forward.__doc__ == "Scale."


def test_the_decorator_finds_a_callers_list_that_grows():
    """An argument is checked too, because the list outlives the call."""

    @check_leaks()
    def forward(x, history):
        history.append(x.exp())

    mine = []
    with pytest.raises(TensorLeakError, match="`mine`"):
        forward(WEIGHT, mine)


def test_coroutines_are_checked_too():
    """`async def` functions are awaited inside the block."""

    @check_leaks()
    async def forward():
        await asyncio.sleep(0)
        return WEIGHT.exp()

    @check_leaks()
    async def leaky():
        await asyncio.sleep(0)
        park()

    assert asyncio.run(forward()).shape == (16, 16)
    with pytest.raises(TensorLeakError, match="PARKED"):
        asyncio.run(leaky())


def test_a_block_in_a_coroutine_may_bind_names():
    """Its names are its own, although another object refers to the coroutine."""

    async def clean():
        with check_leaks():
            first = WEIGHT.exp()
            await asyncio.sleep(0)
            second = first.exp()
        return second

    assert asyncio.run(clean()).shape == (16, 16)


def held_running(make):
    """Run a coroutine or a generator that a list of the program holds."""
    PARKED["running"] = [make()]
    with contextlib.suppress(StopIteration):
        while True:
            PARKED["running"][0].send(None)


async def binds_names():
    with check_leaks():
        first = WEIGHT.exp()
        second = first.exp()
    return second


def binds_names_and_yields():
    with check_leaks():
        first = WEIGHT.exp()
        yield
        first.exp()


async def parks():
    with check_leaks():
        await asyncio.sleep(0)
        park()


@pytest.mark.parametrize("make", [binds_names, binds_names_and_yields])
def test_an_object_that_holds_a_running_coroutine_does_not_hold_its_names(make):
    """From Python 3.14 on, gc shows the names of a coroutine that runs."""
    held_running(make)


def test_what_a_held_running_coroutine_parks_is_a_leak():
    with pytest.raises(TensorLeakError, match="PARKED"):
        held_running(parks)


def test_a_suspended_generator_holds_its_names():
    """The caller's list holds it, and its call does not run."""

    def suspended():
        kept = WEIGHT.exp()
        yield kept

    PARKED["generators"] = []

    def block():
        PARKED["generators"].append(suspended())
        next(PARKED["generators"][-1])

    (leak,) = leaks_of(block)
    assert "`kept` of suspended generator" in leak.holder


def test_tensors_made_by_other_threads_are_seen():
    """The births of every thread of the block count."""

    def block():
        thread = threading.Thread(target=park)
        thread.start()
        thread.join()

    (leak,) = leaks_of(block)
    assert "PARKED" in leak.holder


def test_a_collection_inside_the_block_hides_nothing():
    """The program may call gc.collect() itself; survivors are still known."""

    def block():
        park()
        gc.collect()

    (leak,) = leaks_of(block)
    assert leak.kind == "retained"


def test_create_graph_on_a_living_model_is_retained():
    """A gradient is legitimate, the graph behind it is not."""
    weight = torch.randn(8, requires_grad=True)

    def block():
        (weight**3).sum().backward(create_graph=True)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward.. with create_graph=True")  # once in a process
        leaks = leaks_of(block)
    assert any(edge.kind is EdgeKind.GRAD for leak in leaks for edge in leak.edges)


def test_blocks_nest():
    """Each block answers for itself; the outer one sees the inner one's leak as well."""
    with pytest.raises(TensorLeakError) as outer, check_leaks():
        leaks_of(park)
    assert "PARKED" in outer.value.leaks[0].holder


@pytest.mark.words
def test_the_error_is_text_and_survives_pickling():
    """It derives from MemwatchError and AssertionError, and holds no object of the program."""
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        park()
    error = caught.value
    assert isinstance(error, MemwatchError)
    assert isinstance(error, AssertionError)
    assert pickle.loads(pickle.dumps(error)).leaks == error.leaks
    text = str(error)
    for words in ("retained: 1.00 KiB in 1 tensor", "made at:", "path from the root:", "advice:"):
        assert words in text


def test_views_that_autograd_refuses_to_touch_break_nothing():
    """A view of several whose base was changed in place raises on any look at its graph; the check goes on."""
    base = torch.randn(2, requires_grad=True).clone()
    views = base.unbind()
    with torch.no_grad():
        base.add_(1)
    with pytest.raises(RuntimeError, match="modified inplace"):
        _ = views[0].grad_fn
    with check_leaks():
        kept = WEIGHT.exp()
    (leak,) = leaks_of(park)
    assert "PARKED" in leak.holder
    assert kept.shape == (16, 16)


def test_a_tensor_that_grows_is_told_by_what_it_added_and_where():
    """`torch.cat` and `resize_` add to one tensor: the bytes added, the line that did it; what is broadcast is new."""
    PARKED.update(joined=torch.ones(8), mean=torch.ones(1))
    scratch = torch.ones(8)

    def grow():
        PARKED["joined"] = torch.cat([PARKED["joined"], torch.ones(4)])
        scratch.resize_(10)
        PARKED["mean"] = PARKED["mean"] * torch.ones(64)

    first = grow.__code__.co_firstlineno
    leaks = leaks_of(grow)
    assert [(leak.cut.name, leak.nbytes, leak.grows) for leak in leaks] == [
        ("'joined'", 16, True),
        ("scratch", 8, True),
    ]
    assert [f":{first + 1 + number} in grow" in leak.site for number, leak in enumerate(leaks)] == [
        True,
        True,
    ]


def test_the_tensor_beside_a_line_is_one_that_this_line_made():
    """A graph keeps weights that another line made. The line of the loss is reported with a tensor of its own."""
    kept = []

    def step():
        net = torch.nn.Linear(64, 64)
        kept.append(net(torch.ones(2, 64)).sum())

    (leak,) = find_leaks(step)
    code = step.__code__
    assert leak.site.endswith(f"py:{code.co_firstlineno + 2} in {code.co_name}")
    assert leak.tensor == "Tensor [2, 64] float32"


def test_a_copy_has_the_line_that_asked_for_it():
    """Users cannot edit Python's own code: `copy.deepcopy` makes tensors, and so do threads' and wrappers' calls."""
    kept = []

    def keep():
        kept.append(copy.deepcopy(LAYER))

    (leak,) = find_leaks(keep)
    assert leak.site.endswith(f"py:{keep.__code__.co_firstlineno + 1} in {keep.__code__.co_name}")
    assert leak.caller is None


def test_one_pass_shows_the_arguments_of_a_function_that_runs_at_exit():
    """Until Python 3.14 only C keeps them. What else C alone keeps may be a cache, so it is not reported."""
    try:
        [leak] = leaks_of(lambda: atexit.register(len, torch.ones(8)))
        assert "atexit" in leak.advice
        with check_leaks():
            atexit.register(len, weakref.ref(torch.ones(8)))
        with check_leaks():
            made = torch.ones(8), None
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
            del made
    finally:
        atexit.unregister(len)


def test_one_pass_says_that_a_container_may_be_filling():
    """A reader should know what one pass cannot show; of a cycle, or by further calls, there is nothing to add."""
    kept = []

    def keep():
        kept.append(torch.ones(8))

    def ring():
        values = [torch.ones(8)]
        values.append(values)

    for program, is_said in ((keep, True), (ring, False)):
        with pytest.raises(TensorLeakError) as caught, check_leaks():
            program()
        assert (MAY_BE_FILLING in str(caught.value)) == is_said
    assert MAY_BE_FILLING not in str(TensorLeakError(find_leaks(keep)))


def test_a_first_step_of_an_optimizer_explains_no_storage_without_a_loop(monkeypatch):
    """A collection of young objects frees none of them. To name the references of each took seconds."""
    explained = []
    monkeypatch.setattr(check, "explain_unreachable", lambda *given: explained.append(given) and None)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    with check_leaks():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert not explained
