"""A leak names the lines that add to the container by its name, and none if they are not known."""

from __future__ import annotations

import ast
import importlib.util
import linecache
import logging
import os
import queue
import sys
import types
import warnings
from collections import deque

import pytest
import torch

import memwatch

MADE = []
BY_KEY = {}
MANY = []
UNDER_ANOTHER_NAME = []
WAITING = queue.SimpleQueue()


def made():
    return torch.ones(1000)


class Log:
    def __init__(self):
        self.outputs = {"train": [], "val": deque()}
        self.seen = []

    def write(self, value):
        self.outputs["val"].append(value)

    def keep(self, value):
        self.seen += [value]


class Other:
    def __init__(self):
        self.seen = []

    def keep(self, value):
        self.seen.append(value)


LOG = Log()


def of_a_global():
    value = made()
    MADE.append(value)  # no part of the code that the leak shows


def of_a_key():
    value = made()
    BY_KEY[len(BY_KEY)] = value


def of_an_attribute():
    LOG.write(made())


def of_an_attribute_of_this_class():
    LOG.keep(made())


def of_three_lines():
    first, second, third = made(), made(), made()
    MANY.append(first)
    MANY.append(second)
    MANY.append(third)


def add(kept, value):
    kept.append(value)


def of_another_name():
    add(UNDER_ANOTHER_NAME, made())


def a_local_of_the_same_name():
    UNDER_ANOTHER_NAME = []
    UNDER_ANOTHER_NAME.append(1)
    return UNDER_ANOTHER_NAME


def of_a_closure():
    kept = []

    def step():
        value = made()
        kept.append(value)

    return step


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (of_an_attribute, 'in write: `self.outputs["val"].append(value)`'),
        (of_a_global, "in of_a_global: `MADE.append(value)`"),
        (of_a_key, "in of_a_key: `BY_KEY[len(BY_KEY)] = value`"),
        (of_an_attribute_of_this_class, "in keep: `self.seen += [value]`"),
        (of_a_closure(), "in step: `kept.append(value)`"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_leak_names_the_line_that_adds_to_its_container(step, code):
    (leak,) = memwatch.find_leaks(step)
    assert leak.added_at.endswith(code)
    assert f"  added at: {leak.added_at}\n" in str(leak)


@pytest.mark.parametrize("step", [of_another_name, of_three_lines], ids=lambda each: each.__name__)
def test_no_line_is_named_that_may_add_to_something_else(step):
    """A parameter has another name, a local variable of the same name is another list, and three lines are too many."""
    (leak,) = memwatch.find_leaks(step)
    assert leak.added_at == ""
    assert "added at" not in str(leak)


def test_a_line_that_makes_the_tensor_and_adds_it_is_named_once():
    kept = []

    def step():
        kept.append(torch.ones(1000))

    (leak,) = memwatch.find_leaks(step)
    assert leak.site.endswith("in step")
    assert leak.added_at == ""


RESULTS = []


class OfAnotherClass:
    def __init__(self):
        self.RESULTS = []
        self.seen = []

    def write(self, number):
        self.RESULTS.append(number)
        self.seen.append(number)


def of_a_global_like_an_attribute():
    add(RESULTS, made())


class Cart:
    def __init__(self):
        self.items = []


class Goods:
    def __init__(self):
        self.items = []


GOODS = Goods()


def buy(cart):
    cart.items.append("apple")


def of_a_cell_like_a_local():
    kept = []

    def step():
        def unused():
            kept = []
            kept.append(1)

        add(kept, made())

    return step


def of_an_attribute_of_a_global():
    value = made()
    GOODS.items.append(value)


@pytest.mark.parametrize(
    "step",
    [
        of_a_global_like_an_attribute,
        of_a_cell_like_a_local(),
    ],
    ids=["global", "cell"],
)
def test_a_name_that_means_another_object_is_not_named(step):
    (leak,) = memwatch.find_leaks(step)
    assert leak.added_at == ""


def test_an_attribute_counts_where_the_path_leads_to_its_object():
    """`cart.items` is the list of another object."""
    (leak,) = memwatch.find_leaks(of_an_attribute_of_a_global)
    assert leak.added_at.endswith("in of_an_attribute_of_a_global: `GOODS.items.append(value)`")
    assert "cart" not in leak.added_at


def program(tmp_path, text):
    """Import a program and return its module."""
    file = tmp_path / "added_program.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("added_program", file)
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec.loader.exec_module(module)
    return module


STEP = "import torch\nkept = []\ndef step():\n    value = torch.ones(1000)\n    kept.append(value)\n"


@pytest.mark.parametrize(
    "text",
    [
        'pattern = "\\d"\n',  # the parser warns of it
        f"total = {' + '.join(['1'] * 2200)}\n",  # too deep for a parser with little stack left
        'shown = "\u2028\x0c"\n',  # no end of a line
    ],
    ids=["warning", "deep", "separators"],
)
def test_the_text_of_a_program_raises_and_warns_nothing(text, tmp_path):
    module = program(tmp_path, text + STEP)

    def deep(frames):
        return memwatch.find_leaks(module.step) if frames == 0 else deep(frames - 1)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        (leak,) = deep(400)
    assert [each for each in seen if issubclass(each.category, (SyntaxWarning, DeprecationWarning))] == []
    is_read = "total" not in text  # with so little stack left, the deep one may not be
    assert leak.added_at.endswith("in step: `kept.append(value)`") or not (is_read or leak.added_at)


def test_a_file_that_changed_is_read_again(tmp_path):
    program(tmp_path, STEP)
    module = program(tmp_path, STEP)
    assert memwatch.find_leaks(module.step)[0].added_at.partition(" ")[0].endswith(":5")
    os.utime(tmp_path / "added_program.py", (1, 1))
    module = program(tmp_path, "\n\n" + STEP)
    assert memwatch.find_leaks(module.step)[0].added_at.partition(" ")[0].endswith(":7")


def test_the_work_grows_with_the_file_and_not_faster():
    """A function of many lines that all add something is walked a few times, and not once for each line."""
    from memwatch import added_at

    text = "def fill(d):\n" + "".join(f"    d[{number}] = 1\n" for number in range(2000))
    nodes = 0
    walk = ast.iter_child_nodes

    def counted(node):
        nonlocal nodes
        for child in walk(node):
            nodes += 1
            yield child

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(added_at.ast, "iter_child_nodes", counted)
        assert len(added_at._changes(text).changes) == 2000
    assert nodes < 10 * text.count("\n") * 5


def test_the_code_of_a_module_without_a_file_is_its_own():
    """As in a notebook, whose cells have names of their own."""
    text = "kept = []\ndef step():\n    value = torch.ones(1000)\n    kept.append(value)\n"
    names = {"__name__": "without_a_file", "torch": torch}
    module = types.ModuleType("without_a_file")
    vars(module).update(names)
    linecache.cache["a cell"] = (len(text), None, text.splitlines(keepends=True), "a cell")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "without_a_file", module)
        exec(compile(text, "a cell", "exec"), vars(module))
        (leak,) = memwatch.find_leaks(module.step)
    assert leak.added_at.endswith("in step: `kept.append(value)`")


def test_a_program_may_have_deleted_its_working_directory(tmp_path, monkeypatch):
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    (leak,) = memwatch.find_leaks(of_a_global)
    assert leak.added_at.endswith("in of_a_global: `MADE.append(value)`")


class Base:
    def __init__(self):
        self.seen = []

    def keep(self, value):
        self.seen.append(value)


class Derived(Base):
    pass


class Overriding(Base):
    """Its own method may call the one of its base class, or may not."""

    def keep(self, value):
        add(vars(self)["seen"], value)


class Aliasing:
    def __init__(self):
        self.seen = []

    def keep(self, value):
        seen = self.seen
        seen.append(value)


class Swapping:
    """Fills a list that it has replaced by another one."""

    def __init__(self):
        self.seen = []

    def keep(self, value):
        before = self.seen
        self.seen = [*before, value]
        before.append(1)


class Choosing:
    """Fills one of two lists."""

    def __init__(self):
        self.seen, self.other = [], []

    def keep(self, value):
        kept = self.other
        if value is not None:
            kept = self.seen
        kept.append(value)


def of_a_class_in_a_function():
    class Handler(logging.Handler):
        def __init__(self):
            super().__init__()
            self.records = []

        def emit(self, record):
            self.records.append(record)

    logger = logging.Logger("added_at")
    logger.addHandler(Handler())
    return lambda: logger.info("loss %s", made())


def of_another_name_of_a_closure():
    log = Other()

    def step():
        value = made()
        seen = log.seen
        seen.append(value)

    return step


def keeps_in(log):
    return lambda: log.keep(made())


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (keeps_in(Derived()), "in keep: `self.seen.append(value)`"),
        (keeps_in(Aliasing()), "in keep: `seen.append(value)`"),
        (of_a_class_in_a_function(), "in emit: `self.records.append(record)`"),
        (of_another_name_of_a_closure(), "in step: `seen.append(value)`"),
    ],
    ids=["base", "alias", "handler", "closure"],
)
def test_a_line_of_a_base_class_or_of_another_name_is_named(step, code):
    (leak,) = memwatch.find_leaks(step)
    assert leak.added_at.endswith(code)


@pytest.mark.parametrize("log", [Overriding(), Swapping(), Choosing()], ids=lambda log: type(log).__name__)
def test_a_line_that_may_fill_another_list_or_may_not_run_is_not_named(log):
    (leak,) = memwatch.find_leaks(keeps_in(log))
    assert leak.added_at == ""
