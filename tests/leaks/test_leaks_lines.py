"""A path names the line of the program or the package that made a reference, not the file of the class it is in."""

from __future__ import annotations

import copy
import dataclasses
import gc
import inspect
import logging
import queue
import sys
import sysconfig
import threading
import types
import weakref
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as futures_thread
from pathlib import Path

import pytest
import torch
from torch import nn

from memwatch._torch.modes import mode_stack
from memwatch.leaks import TensorLeakError, check_leaks, find_leaks
from memwatch.leaks.ledger import Threads

BATCHES: queue.Queue[torch.Tensor] = queue.Queue()


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def line_of(function, text):
    """Return the line of a function that has some text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def patch(layer):
    layer.forward_before_patching = layer.forward


def test_an_attribute_that_a_function_puts_on_a_layer_of_torch_has_the_line_of_the_function():
    """The class of the layer is torch's, and none of its methods assigns the attribute."""
    [leak] = find_leaks(lambda: patch(nn.Linear(8, 8)))
    assert (leak.cut.file, leak.cut.line) == (__file__, line_of(patch, "layer.forward_before"))
    assert any("test_leaks_lines.py:" in line for line in leak.path if "forward_before_patching" in line)


def patch_first(layer):
    layer.patched_by_several = layer.forward


def patch_second(layer):
    layer.patched_by_several = layer.forward


def test_where_several_functions_may_have_put_it_there_no_line_is_named():
    """It is unknown which of them did it, and the file of the class is no place to edit."""
    [leak] = find_leaks(lambda: patch_first(nn.Linear(8, 8)))
    assert leak.cut.line is None
    [line] = [line for line in leak.path if "patched_by_several" in line]
    assert "linear.py" not in line.partition("->")[0]


def test_a_copy_of_a_plain_tensor_has_the_line_that_copied_it():
    """`copy.deepcopy` copies its storage without an op, and puts the copy into a tensor by one."""
    state, kept, last = {"weight": torch.ones(64), "bias": torch.ones(64)}, [], []

    def keeps_each_copy():
        copied = copy.deepcopy(state)
        kept.append(copied)

    def keeps_the_last_copy():
        last[:] = [copy.deepcopy(state)]

    [leak] = find_leaks(keeps_each_copy)
    place = f"test_leaks_lines.py:{line_of(keeps_each_copy, 'deepcopy')} in keeps_each_copy"
    assert leak.site.endswith(place)
    assert leak.added_at.endswith("in keeps_each_copy: `kept.append(copied)`")
    assert find_leaks(keeps_the_last_copy) == []


def test_a_tensor_over_an_old_storage_is_no_new_one():
    storage, last = torch.ones(64).untyped_storage(), []

    def step():
        last[:] = [torch.empty(0).set_(storage)]

    assert find_leaks(step) == []


class Other:
    """Has an attribute of the name that another class gives by other means."""

    def __init__(self):
        self.given_by_name = torch.ones(8)


class Given(nn.Module):
    """Gets its attribute by name."""

    def __init__(self):
        super().__init__()
        setattr(self, "given_by_name", self.check)  # noqa: B010 - the name is not to stand in the code

    def check(self):
        pass


def test_what_another_class_assigns_to_its_own_objects_is_not_blamed():
    """A method assigns attributes of its own class; that another class has one of the same name says nothing."""
    [leak] = find_leaks(lambda: wrapped() and None)
    assert leak.cut.name == "given_by_name"
    assert leak.cut.line is None


def wrapped():
    model = Given()
    model.layer = nn.Linear(8, 8)
    return model


class Updated:
    """Gets its attributes from a dictionary."""

    def __init__(self, **values):
        self.tensor = torch.ones(64)
        vars(self).update(values)


_MAKES_ITS_OWN = """
class Number:
    def __new__(cls, value):
        made = object.__new__(cls)
        made.{name} = value
        return made
"""
_GETS_IT = """
def attach(record):
    record.{name} = record
"""


@pytest.mark.parametrize(
    ("source", "name", "line"), [(_MAKES_ITS_OWN, "put_on_its_own", None), (_GETS_IT, "put_by_a_package", 3)]
)
def test_a_package_that_sets_an_attribute_of_the_objects_that_it_makes_is_not_blamed(
    source, name, line, monkeypatch
):
    package = types.ModuleType(f"package_of_{name}")
    file = Path(sysconfig.get_path("purelib"), f"{package.__name__}.py")
    exec(compile(source.format(name=name), file, "exec"), vars(package))
    monkeypatch.setitem(sys.modules, package.__name__, package)

    def call():
        record = Updated()
        vars(record)[name] = record

    [leak] = find_leaks(call)
    assert (leak.cut.name, leak.cut.line) == (name, line)


@dataclasses.dataclass
class Source:
    """Its `__init__` is in no file."""

    owner: object


class Loader:
    """An object that its own attribute keeps alive."""

    def __init__(self):
        self.batch = torch.ones(64)
        self.source = Source(self)


def test_code_that_no_file_has_is_no_place():
    """A dataclass writes its `__init__` itself."""
    [leak] = find_leaks(lambda: Loader() and None)
    assert not any("<string>" in line for line in leak.path)
    assert leak.cut.of_argument  # it stores what it was given, nonetheless


def test_a_queue_of_the_program_has_the_line_that_binds_its_name():
    """Its inner objects are made in `queue.py`."""
    [leak] = find_leaks(lambda: BATCHES.put(torch.ones(64)))
    with BATCHES.mutex:
        BATCHES.queue.clear()
    [root] = [edge for edge in leak.edges if edge.name == "BATCHES"]
    text = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    assert text[root.line - 1].startswith("BATCHES: ")
    assert f"test_leaks_lines.py:{root.line}" in leak.path[0]


def make_for(results):
    results.append(torch.ones(256))


def in_new_thread(results):
    thread = threading.Thread(target=make_for, args=(results,))
    thread.start()
    thread.join()


def in_own_pool(results):
    with ThreadPoolExecutor(1) as pool:
        pool.submit(make_for, results).result()


@pytest.mark.parametrize("work", [in_new_thread, in_own_pool], ids=["thread", "pool"])
def test_a_tensor_that_another_thread_makes_has_its_line(work):
    results = []
    [leak] = find_leaks(work, results)
    assert leak.site.endswith(f"test_leaks_lines.py:{line_of(make_for, 'torch.ones')} in make_for")
    with (
        pytest.raises(
            TensorLeakError, match=f"test_leaks_lines.py:{line_of(make_for, 'torch.ones')} in make_for"
        ),
        check_leaks(),
    ):
        work(results)


def test_a_task_of_a_pool_that_is_older_than_the_search_has_its_line():
    results = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(make_for, []).result()
        [leak] = find_leaks(lambda: pool.submit(make_for, results).result())
        assert leak.site.endswith(f"test_leaks_lines.py:{line_of(make_for, 'torch.ones')} in make_for")


@pytest.mark.parametrize("work", [in_new_thread, in_own_pool], ids=["thread", "pool"])
def test_threads_that_leave_nothing_are_no_leak_and_run_as_before(work):
    before = threading.Thread._bootstrap_inner, futures_thread._WorkItem.run
    assert find_leaks(lambda: work([])) == []
    with check_leaks():
        work([])
    assert (threading.Thread._bootstrap_inner, futures_thread._WorkItem.run) == before


def test_a_thread_that_runs_on_notes_nothing_after_the_search():
    """It keeps the mode, which only the thread itself could switch off."""
    jobs, answers, kept = queue.Queue(), queue.Queue(), []

    def work():
        for job in iter(jobs.get, None):
            answers.put(job())

    def step():
        if not threads:
            threads.append(threading.Thread(target=work))
            threads[0].start()
        kept.append(torch.ones(64))

    threads = []
    with pytest.raises(TensorLeakError), check_leaks():
        step()
    jobs.put(mode_stack)
    [mode] = answers.get()
    jobs.put(lambda: torch.ones(64).sum().item())
    assert answers.get() == 64
    assert mode.is_over
    assert not mode._book.alive()[1:]
    jobs.put(None)
    threads[0].join()


class Doubled(torch.autograd.Function):
    """Stores its result on ctx, which keeps the graph that keeps ctx."""

    @staticmethod
    def forward(ctx, x):
        ctx.doubled_by_a_static_method = y = x * 2
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_an_attribute_that_a_static_method_puts_on_its_argument_has_its_line():
    """Its first argument is no object of its own class."""
    weight = torch.ones(64, requires_grad=True)
    leaks = find_leaks(lambda: Doubled.apply(weight).sum().backward())
    places = [(edge.file, edge.line) for edge in leaks[0].edges if edge.name == "doubled_by_a_static_method"]
    assert places == [(__file__, line_of(Doubled.forward, "ctx.doubled_by"))]


def test_waiting_for_a_thread_keeps_no_variable_of_the_callers():
    """The table of all frames contains the frame that has the table: a cycle while gc is held still."""
    stop = threading.Event()
    threads = Threads()
    thread = threading.Thread(target=stop.wait)
    thread.start()

    def call():
        tensor = torch.ones(8)
        threads.settle()
        return weakref.ref(tensor)

    gc.disable()
    try:
        kept = call()
        assert kept() is None
    finally:
        gc.enable()
        stop.set()
        thread.join()


def fail_and_keep(errors):
    try:
        raise ValueError
    except ValueError as error:
        errors.append(error)


def test_the_objects_of_a_search_are_no_objects_of_the_program():
    """A kept exception keeps the frames of its callers, which include the search's own."""
    errors, kept = [], []

    def step():
        fail_and_keep(errors)
        kept.append(torch.ones(64))

    [leak] = find_leaks(step)
    assert not any(name == "RLock" for name, _ in leak.beside)


def test_an_item_of_a_list_that_grows_has_no_index():
    kept = []
    [leak] = find_leaks(lambda: kept.append(torch.ones(64)))
    assert leak.reference == "an item of a list of 5"
    assert leak.path[-1] == "an item of a list of 5 -> Tensor [64] float32"
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        LAST.append(torch.ones(64))
    assert caught.value.leaks[0].reference == "item [0] of list of 1"


LAST: list[torch.Tensor] = []
MASK: torch.Tensor | None = None


def bind():
    global MASK  # noqa: PLW0603
    MASK = torch.ones(64) @ WEIGHT


WEIGHT = torch.ones(64, requires_grad=True)


def test_a_path_of_one_reference_is_no_path_beside_the_headline():
    numbers = iter(range(100))
    settings = types.SimpleNamespace()
    [leak] = find_leaks(lambda: setattr(settings, f"mask_{next(numbers)}", torch.ones(64)))
    assert len(leak.edges) > 1
    assert "path from the root:" in str(leak)
    with pytest.raises(TensorLeakError) as caught, check_leaks():
        bind()
    [leak] = caught.value.leaks
    assert len(leak.edges) == 1
    text = str(leak)
    assert "path from the root:" not in text
    assert text.count("global `MASK`") == 1


class Filter:
    def __init__(self):
        self.mask = torch.ones(64)

    def filter(self, record):
        return self.mask is not record


def test_a_filter_of_a_logger_is_found_from_the_root_logger():
    """Many modules have a logger, and each leads to all."""
    name = "memwatch.tests.of_a_path"
    [leak] = find_leaks(lambda: logging.getLogger(name).addFilter(Filter()))
    assert leak.holder.startswith("global `root` of module logging -> attribute .manager of RootLogger"), leak
    assert repr(name) in leak.holder
    logging.getLogger(name).filters.clear()
