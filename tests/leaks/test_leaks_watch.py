"""LeakWatch: what grows between the marks of a process that runs on."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref

import pytest
import torch

import memwatch
from memwatch._torch.modes import mode_stack
from memwatch.heap.names import assignment_place, class_place
from memwatch.leaks import EveryError, LeakWatch

KEPT: list[object] = []
AVERAGE: dict[str, torch.Tensor] = {}


class Request:
    def __init__(self, output):
        self.output = output


def serve(rows=3):
    KEPT.append(Request(torch.ones(rows, 8)))
    AVERAGE["mean"] = AVERAGE["mean"] * 0.9


@pytest.fixture(autouse=True)
def _fresh():
    torch.set_num_threads(1)
    AVERAGE["mean"] = torch.ones(64)
    yield
    KEPT.clear()
    AVERAGE.clear()


def test_what_grows_from_mark_to_mark_is_told_by_its_holder():
    """Requests of any size pile up in a list. The average beside it is replaced as often and does not leak."""
    watch = memwatch.LeakWatch()
    for rows in (1, 9, 2, 5):
        watch.mark()
        serve(rows)
        serve(rows)
    watch.mark("end")
    (leak,) = watch.leaks
    assert {edge.name for edge in leak.edges} >= {"KEPT", "output"}
    assert leak.nbytes == 2 * (9 + 2 + 5) * 8 * 4
    assert leak.count == 6
    rows = watch.growth[watch.growth["holder"].str.contains("KEPT")]
    assert rows.groupby("mark")["count"].sum().to_dict() == {"1": 2, "2": 4, "3": 6, "end": 8}
    assert str(leak) in watch.report()


@pytest.mark.whole
def test_marks_are_set_every_so_many_calls_and_gc_goes_on():
    """A decorated function is counted. Between marks gc runs as usual.

    From the mark that shows growth to the mark that knows its line, the function runs under a dispatch mode.
    """
    watch = LeakWatch(every=2)
    noted = []

    @watch
    def watched():
        noted.append(bool(mode_stack()))
        serve()

    for _ in range(8):
        watched()
        assert gc.isenabled()
    [leak] = watch.leaks
    assert leak.count == 4
    assert leak.site.endswith(" in serve")
    assert noted == [False] * 5 + [True] * 2 + [False]


def test_calls_that_fail_are_counted_and_their_errors_pass_through():
    """Memory that failing requests leave behind grows as well."""
    watch = LeakWatch(every=1)

    @watch
    def fail():
        KEPT.append(torch.ones(4))
        raise KeyError("no such user")

    for _ in range(4):
        with pytest.raises(KeyError, match="no such user"):
            fail()
    [leak] = watch.leaks
    assert leak.count == 2


def test_an_async_function_is_counted_when_it_has_run():
    """Not when its coroutine was made: a mark after that would miss what it leaves."""
    watch = LeakWatch(every=1)

    @watch
    async def answer(value):
        await asyncio.sleep(0)
        KEPT.append(torch.ones(4))
        return value

    assert inspect.iscoroutinefunction(answer)
    waiting = [answer(number) for number in range(4)]
    assert "too few" in watch.report()

    async def all_answers():
        return [await each for each in waiting]

    assert asyncio.run(all_answers()) == [0, 1, 2, 3]
    [leak] = watch.leaks
    assert leak.count == 2


def test_a_class_whose_method_is_watched_is_in_its_own_file():
    """The function inside decorators has the file of the class and of the attributes that it assigns."""
    watch = LeakWatch(every=1)

    class Service:
        @watch
        @torch.no_grad()
        def answer(self):
            self.last = torch.ones(4)

    code = Service.answer.__wrapped__.__wrapped__.__code__
    assert class_place(Service) == (__file__, code.co_firstlineno)
    assert assignment_place(Service, "last")[:2] == (__file__, code.co_firstlineno + 3)


@pytest.mark.whole
def test_what_goes_up_and_down_is_no_leak():
    """A queue that was longer at one mark and shorter at another does not grow."""
    watch = LeakWatch()
    for length in (0, 4, 2, 6):
        KEPT[:] = [torch.ones(length + 1) for _ in range(length)]
        watch.mark()
    assert watch.leaks == []
    assert "no holder" in watch.report()


def test_a_watch_extends_no_life():
    """It holds weak references and text."""
    with LeakWatch() as watch:
        serve()
        watch.mark()
        serve()
    assert watch.leaks
    death = weakref.ref(KEPT[0].output)
    KEPT.clear()
    assert death() is None


def test_one_mark_tells_nothing_and_a_wrong_number_is_refused():
    """Growth takes three marks."""
    watch = LeakWatch()
    watch.mark()
    assert watch.leaks == []
    assert "too few" in watch.report()
    with pytest.raises(EveryError, match="every=-1"):
        LeakWatch(every=-1)
