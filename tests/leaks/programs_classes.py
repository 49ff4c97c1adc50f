"""Leaks through classes, the tables of modules, and tensors that grow."""

from __future__ import annotations

import functools
import itertools
import weakref
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from leak_program import collect
from torch import nn
from torch.nn.utils import parametrize

NUMBERS = itertools.count()


def tensor():
    return torch.randn(32, 8)


class Normalized:
    """A descriptor that keeps the values of all instances itself."""

    def __init__(self):
        self.values = {}

    def __set__(self, instance, value):
        self.values[id(instance)] = instance, value

    def __get__(self, instance, owner=None):
        return self.values[id(instance)][1]


class InItsInstance(Normalized):
    def __set__(self, instance, value):
        instance.__dict__["_image"] = value


class Sample:
    image = Normalized()


class Light:
    image = InItsInstance()


def leak_descriptor():
    Sample().image = tensor()


def clean_descriptor():
    Light().image = tensor()


class Plugin:
    known: ClassVar[list[type]] = []

    def __init_subclass__(cls, *, keep=True, **kwargs):
        super().__init_subclass__(**kwargs)
        if keep:
            Plugin.known.append(cls)


def leak_registered_classes():
    class Mine(Plugin):
        weights = tensor()


def clean_registered_classes():
    class Mine(Plugin, keep=False):
        weights = None


INFO = weakref.WeakKeyDictionary()


class About:
    def __init__(self, module):
        self.module = module


def leak_weak_key_kept_by_its_value():
    layer = nn.Linear(8, 8)
    INFO[layer] = About(layer)


def clean_weak_key_kept_by_its_value():
    layer = nn.Linear(8, 8)
    INFO[layer] = About(weakref.ref(layer))


class Graph:
    def __init__(self):
        self.nodes = tensor()

    @functools.cached_property
    def neighbours(self):
        return functools.partial(self.look, 1)

    def fresh(self):
        return functools.partial(self.look, 1)

    def look(self, hops):
        return self.nodes[hops]


def leak_cached_property_of_itself():
    return Graph().neighbours().shape


def clean_cached_property_of_itself():
    return Graph().fresh()().shape


@dataclass(slots=True)
class Request:
    image: torch.Tensor = field(default_factory=tensor)


OPEN = {}


def leak_open_requests():
    request = Request()
    OPEN[id(request)] = request


def clean_open_requests():
    request = Request()
    OPEN[id(request)] = request
    del OPEN[id(request)]


class Runs:
    pass


def leak_numbered_class_attributes():
    setattr(Runs, f"run_{next(NUMBERS)}", tensor())


def clean_numbered_class_attributes():
    Runs.newest = tensor()


def leak_numbered_globals():
    globals()[f"mask_{next(NUMBERS)}"] = tensor()


def clean_numbered_globals():
    globals()["newest_mask"] = tensor()


MODEL = nn.Linear(16, 16)


def leak_numbered_buffers():
    MODEL.register_buffer(f"step_{next(NUMBERS)}", tensor())


def clean_numbered_buffers():
    MODEL.register_buffer("step", tensor())


PROMPTS = nn.ParameterList()


def leak_prompt_tokens():
    PROMPTS.append(nn.Parameter(torch.randn(4, 16)))


ONE_PROMPT = nn.ParameterList([torch.randn(4, 16)])


def clean_prompt_tokens():
    ONE_PROMPT[0] = nn.Parameter(torch.randn(4, 16))


class Mask(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(16, 16))

    def forward(self, weight):
        return weight * self.mask


MASKED = parametrize.register_parametrization(nn.Linear(16, 16), "weight", Mask())


def leak_parametrized_again():
    parametrize.register_parametrization(MASKED, "weight", Mask())


def clean_parametrized_again():
    parametrize.register_parametrization(MASKED, "weight", Mask())
    del MASKED.parametrizations.weight[-1]


PAST = {}


def attend(keys, values, *, most=None):
    for layer in range(2):
        old = PAST.get((layer, most), (torch.zeros(1, 16), torch.zeros(1, 16)))
        new = (torch.cat([part, more]) for part, more in zip(old, (keys, values), strict=True))
        PAST[layer, most] = tuple(part[-most:].clone() if most else part for part in new)


def leak_cache_of_keys_and_values():
    attend(torch.randn(1, 16), torch.randn(1, 16))


def clean_cache_of_keys_and_values():
    attend(torch.randn(1, 16), torch.randn(1, 16), most=4)


def rows(at):
    return torch.sparse_coo_tensor([[at, at + 1]], torch.randn(2, 8), (10_000, 8))


TOTALS = {"new rows": rows(0), "same rows": rows(0)}


def leak_sparse_sum():
    TOTALS["new rows"] = TOTALS["new rows"] + rows(2 * next(NUMBERS) + 2)


def clean_sparse_sum():
    TOTALS["same rows"] = (TOTALS["same rows"] + rows(0)).coalesce()


STATES = []


def leak_random_states():
    STATES.append(torch.get_rng_state())


def clean_random_states():
    STATES[:] = [torch.get_rng_state()]


PROGRAMS = collect(
    globals(),
    [
        ("descriptor", "retained", ("attribute .values of Normalized",)),
        ("registered_classes", "retained", ("class attribute .known of class Plugin", ".weights")),
        ("weak_key_kept_by_its_value", "retained", ("global `INFO`", "attribute .module of About")),
        ("cached_property_of_itself", "cycle", ("attribute .neighbours of Graph",)),
        ("open_requests", "retained", ("global `OPEN`", "attribute .image of Request")),
        ("numbered_class_attributes", "retained", ("class attribute .run_", "class Runs")),
        ("numbered_globals", "retained", ("global `mask_",)),
        ("numbered_buffers", "retained", ("global `MODEL`", "buffer 'step_")),
        ("prompt_tokens", "retained", ("global `PROMPTS`",)),
        ("parametrized_again", "retained", ("global `MASKED`", "buffer 'mask' of Mask")),
        ("cache_of_keys_and_values", "retained", ("global `PAST`",)),
        ("sparse_sum", "retained", ("global `TOTALS`", "'new rows'")),
        ("random_states", "retained", ("global `STATES`",)),
    ],
)
