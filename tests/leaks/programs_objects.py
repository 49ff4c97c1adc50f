"""Leaks through objects: finalizers, log records, slots, named tuples, dataclasses, trees."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import torch
from leak_program import collect

HISTORY = []


def tensor():
    return torch.randn(32, 8)


class Resource:
    pass


RESOURCE = Resource()


def leak_finalize():
    weakref.finalize(RESOURCE, print, tensor()).atexit = False


def clean_finalize():
    finalizer = weakref.finalize(RESOURCE, print, tensor())
    finalizer.detach()


class KeepRecords(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []

    def emit(self, record):
        self.records.append(record)


LOGGER = logging.getLogger("memwatch-test-program")
LOGGER.propagate = False
LOGGER.setLevel(logging.INFO)
LOGGER.addHandler(KeepRecords())


def leak_log_record():
    LOGGER.info("loss %s", tensor())


def clean_log_record():
    LOGGER.info("loss %s", tensor().sum().item())


class Slotted:
    __slots__ = ("before", "value")

    def __init__(self, value, before):
        self.value, self.before = value, before


CHAIN = {"head": None}


def leak_linked_list():
    CHAIN["head"] = Slotted(tensor(), CHAIN["head"])


def clean_linked_list():
    CHAIN["head"] = Slotted(tensor(), None)


class Entry(NamedTuple):
    name: str
    value: torch.Tensor


@dataclass
class Result:
    output: torch.Tensor


ENTRIES = []


def leak_namedtuple():
    ENTRIES.append(Entry("a", tensor()))


def clean_namedtuple():
    ENTRIES[:] = [Entry("a", tensor())]


def leak_dataclass():
    ENTRIES.append(Result(tensor()))


def clean_dataclass():
    ENTRIES.append(Result(tensor().shape))


KEY = Resource()
PER_OBJECT = weakref.WeakKeyDictionary()


def leak_weak_dictionary_value():
    PER_OBJECT.setdefault(KEY, []).append(tensor())


def clean_weak_dictionary_value():
    PER_OBJECT[RESOURCE] = tensor()


def leak_view_of_big():
    HISTORY.append(torch.randn(256, 64)[0])


def clean_view_of_big():
    torch.randn(256, 64)[0].clone()


class Node:
    def __init__(self, parent=None):
        self.parent, self.children, self.value = parent, [], tensor()


def leak_parent_child():
    root = Node()
    root.children.append(Node(root))


def clean_parent_child():
    root = Node()
    root.children.append(Node(weakref.ref(root)))


PROGRAMS = collect(
    globals(),
    [
        ("finalize", "retained", ("weakref.finalize", "attribute .args")),
        ("log_record", "retained", ("LogRecord", "KeepRecords")),
        ("linked_list", "retained", ("global `CHAIN`",)),
        ("namedtuple", "retained", ("global `ENTRIES`", "field .value of Entry")),
        ("dataclass", "retained", ("global `ENTRIES`", "attribute .output of Result")),
        ("weak_dictionary_value", "retained", ("global `PER_OBJECT`",)),
        ("view_of_big", "retained", ("global `HISTORY`",)),
        ("parent_child", "cycle", ("attribute .parent of Node",)),
    ],
)
