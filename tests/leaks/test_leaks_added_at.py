"""A leak names the lines that add to the container by its name, and none if they are not known."""

from __future__ import annotations

import queue
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
