"""The line that gave an attribute its value, found in the code of a class."""

from __future__ import annotations

import functools

import pytest

from memwatch.heap.names import assignment_place


class Node:
    def __init__(self):
        self.root = None
        self.parent = None

    def attach(self, child, root):
        child.root = root
        child.parent = self

    @staticmethod
    def adopt(child, name):
        child.name = name

    def plant(self):
        self.root = Node()
        self.name = "root"


class Lazy:
    @property
    def weight(self):
        return self._weight

    @weight.setter
    def weight(self, value):
        self._weight = value

    @functools.cached_property
    def table(self):
        self._rows = [0]
        return self._rows


def line_of(function, offset):
    return function.__code__.co_firstlineno + offset


@pytest.mark.parametrize(
    ("cls", "name", "line"),
    [
        (Node, "root", line_of(Node.plant, 1)),
        (Node, "parent", line_of(Node.attach, 2)),
        (Node, "name", line_of(Node.plant, 2)),
        (Lazy, "_weight", line_of(Lazy.weight.fset, 2)),
        (Lazy, "_rows", line_of(Lazy.table.func, 2)),
    ],
    ids=[
        "of self, not of a child",
        "of a child alone",
        "not in a static method",
        "in a setter",
        "in a cached property",
    ],
)
def test_an_attribute_has_the_line_that_gives_it_a_value(cls, name, line):
    assert assignment_place(cls, name)[:2] == (__file__, line)
