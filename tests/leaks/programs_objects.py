"""Leaks through objects: finalizers, log records, slots, named tuples, dataclasses, trees."""

from __future__ import annotations

import itertools
import logging
import sys
import types
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


SCORES = {}


def leak_keyed_by_tensor():
    value = tensor()
    SCORES[value] = float(value.sum())


def clean_keyed_by_tensor():
    value = tensor()
    SCORES[tuple(value.shape)] = float(value.sum())


GRAVE = []


class Undead:
    def __init__(self):
        self.value = tensor()

    def __del__(self):
        GRAVE.append(self)


def leak_resurrected():
    Undead()


class Counted(Undead):
    def __del__(self):
        GRAVE.append(len(GRAVE))


def clean_resurrected():
    Counted()


class Library:
    @staticmethod
    def loss(values):
        return values.sum()


def _patch():
    weight, earlier = tensor(), Library.loss

    def loss(values):
        return earlier(values) * weight.sum()

    Library.loss = staticmethod(loss)
    return earlier


def leak_patched_again():
    _patch()


def clean_patched_again():
    Library.loss = staticmethod(_patch())


PLUGINS = itertools.count()


def _plugin():
    plugin = types.ModuleType(f"plugin_{next(PLUGINS)}")
    plugin.weights = tensor()
    sys.modules[plugin.__name__] = plugin
    return plugin.__name__


def leak_module_per_plugin():
    _plugin()


def clean_module_per_plugin():
    del sys.modules[_plugin()]


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
        ("keyed_by_tensor", "retained", ("global `SCORES`", "a key of")),
        ("resurrected", "retained", ("global `GRAVE`", "attribute .value of Undead")),
        ("patched_again", "retained", ("class attribute .loss", "closure cell `weight`")),
        ("module_per_plugin", "retained", ("global `weights` of module plugin_",)),
        ("parent_child", "cycle", ("attribute .parent of Node",)),
    ],
)
