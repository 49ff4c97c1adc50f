"""Objects that hold tensors in every way an object can, each with the same program mended."""

from __future__ import annotations

import functools
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass

import torch
from drag_frames import WIDE, block, heavy
from torch import Tensor, nn

BIG = 4 * WIDE


@dataclass
class Batch:
    images: Tensor | None
    labels: Tensor


class Slotted:
    __slots__ = ("hidden",)


Pair = namedtuple("Pair", "scores labels")


def dataclass_field():
    batch = Batch(block(BIG), block(1))
    batch.images.sum()
    heavy()
    return batch.labels


def dataclass_field_dropped():
    batch = Batch(block(BIG), block(1))
    batch.images.sum()
    batch.images = None
    heavy()
    return batch.labels


def slotted_object():
    state = Slotted()
    state.hidden = block(BIG)
    state.hidden.sum()
    heavy()


def slotted_object_dropped():
    state = Slotted()
    state.hidden = block(BIG)
    state.hidden.sum()
    del state.hidden
    heavy()


def named_tuple():
    pair = Pair(block(BIG), block(1))
    pair.scores.sum()
    heavy()
    return pair.labels


def named_tuple_dropped():
    pair = Pair(block(BIG), block(1))
    pair.scores.sum()
    pair = pair._replace(scores=None)
    heavy()
    return pair.labels


def deque_window():
    window = deque(maxlen=4)
    for _ in range(6):
        window.append(block())
        window[-1].sum()
    heavy()


def deque_window_of_sums():
    window = deque(maxlen=4)
    for _ in range(6):
        window.append(float(block().sum()))
    heavy()


def nested_containers():
    registry = {"layers": [{"out": block(BIG)}, {"out": None}]}
    registry["layers"][0]["out"].sum()
    heavy()


def nested_containers_dropped():
    registry = {"layers": [{"out": block(BIG)}, {"out": None}]}
    registry["layers"][0].pop("out").sum()
    heavy()


def default_dictionary():
    groups = defaultdict(list)
    for index in range(4):
        groups[index % 2].append(block())
        groups[index % 2][-1].sum()
    heavy()


def default_dictionary_of_numbers():
    groups = defaultdict(list)
    for index in range(4):
        groups[index % 2].append(float(block().sum()))
    heavy()


_FEATURE_CACHE = {}


def global_dictionary():
    _FEATURE_CACHE["train"] = block(BIG)
    _FEATURE_CACHE["train"].sum()
    heavy()
    _FEATURE_CACHE.clear()


def global_dictionary_cleared():
    _FEATURE_CACHE["train"] = block(BIG)
    _FEATURE_CACHE["train"].sum()
    _FEATURE_CACHE.clear()
    heavy()


class Registry:
    shared_table = None


def class_attribute():
    Registry.shared_table = block(BIG)
    Registry.shared_table.sum()
    heavy()
    Registry.shared_table = None


def class_attribute_reset():
    Registry.shared_table = block(BIG)
    Registry.shared_table.sum()
    Registry.shared_table = None
    heavy()


@functools.lru_cache
def positional_table(rows):
    return block(rows)


def cached_function():
    positional_table(BIG).sum()
    heavy()
    positional_table.cache_clear()


def cached_function_cleared():
    positional_table(BIG).sum()
    positional_table.cache_clear()
    heavy()


def partial_of_partial():
    add = functools.partial(functools.partial(torch.add, block(BIG)), other=1)
    add().sum()
    heavy()
    return add.func


def partial_dropped():
    add = functools.partial(functools.partial(torch.add, block(BIG)), other=1)
    add().sum()
    del add
    heavy()


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x):
        y = self.inner(x * 2)
        return y.sum()


def hook_collects():
    outputs = []
    model = Trunk()
    model.inner.register_forward_hook(lambda module, args, out: outputs.append(out))
    with torch.no_grad():
        for _ in range(3):
            model(block())
    heavy()


def hook_counts():
    outputs = []
    model = Trunk()
    model.inner.register_forward_hook(lambda module, args, out: outputs.append(out.shape))
    with torch.no_grad():
        for _ in range(3):
            model(block())
    heavy()


class FeatureExtractor:
    def __init__(self, model):
        self.features = {}
        model.inner.register_forward_hook(self.keep)

    def keep(self, module, args, out):
        self.features["inner"] = out


def hook_of_object():
    model = Trunk()
    FeatureExtractor(model)
    with torch.no_grad():
        model(block(BIG))
    heavy()


def hook_of_object_cleared():
    model = Trunk()
    extractor = FeatureExtractor(model)
    with torch.no_grad():
        model(block(BIG))
    extractor.features.clear()
    heavy()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept_input = x.expand(BIG // 2, 2, WIDE) * 3
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class ScaleLean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def ctx_attribute():
    start = torch.zeros(2, WIDE, requires_grad=True)
    y = Scale.apply(start).sum()
    heavy()
    y.backward()


def ctx_nothing():
    start = torch.zeros(2, WIDE, requires_grad=True)
    y = ScaleLean.apply(start).sum()
    heavy()
    y.backward()


def default_argument():
    def lookup(index, table=block(BIG)):  # noqa: B008
        return table[index]

    lookup(0).sum()
    heavy()
    return lookup


def default_argument_made_late():
    def lookup(index):
        return block(BIG)[index]

    lookup(0).sum()
    heavy()
    return lookup


def ordered_state():
    state_dict = OrderedDict(weight=block(BIG), bias=block(1))
    for value in state_dict.values():
        value.sum()
    heavy()


def ordered_state_dropped():
    state_dict = OrderedDict(weight=block(BIG), bias=block(1))
    while state_dict:
        state_dict.popitem()[1].sum()
    heavy()


class Tree:
    def __init__(self, value=None, child=None):
        self.value, self.child = value, child


def chain_of_objects():
    tree = Tree(child=Tree(child=Tree(value=block(BIG))))
    tree.child.child.value.sum()
    heavy()


def chain_of_objects_cut():
    tree = Tree(child=Tree(child=Tree(value=block(BIG))))
    tree.child.child.value.sum()
    tree.child = None
    heavy()


class ListOfTensors(list):
    """A list of the program's own."""


def own_list_class():
    kept = ListOfTensors([block(), block(), block()])
    for tensor in kept:
        tensor.sum()
    del tensor
    heavy()


def own_list_class_cleared():
    kept = ListOfTensors([block(), block(), block()])
    while kept:
        kept.pop().sum()
    heavy()


def graph_of_a_metric():
    net = nn.Linear(WIDE, WIDE)
    losses = []
    for _ in range(3):
        losses.append(net(block()).relu().sum())
    del net
    return torch.stack(losses).sum().item()


def numbers_of_a_metric():
    net = nn.Linear(WIDE, WIDE)
    losses = []
    for _ in range(3):
        with torch.no_grad():
            losses.append(net(block()).relu_().sum())
    return torch.stack(losses).sum().item()


# name: (holding program, words that its finding must have, mended twin)
CASES = {
    "dataclass": (
        dataclass_field,
        ("`batch.images`, local variable of `dataclass_field`",),
        dataclass_field_dropped,
    ),
    "slots": (
        slotted_object,
        ("`state.hidden`, local variable of `slotted_object`",),
        slotted_object_dropped,
    ),
    "namedtuple": (named_tuple, ("`pair.scores`, local variable of `named_tuple`",), named_tuple_dropped),
    "deque": (deque_window, ("`window`", "deque_window"), deque_window_of_sums),
    "nested": (nested_containers, ("`registry`", "nested_containers"), nested_containers_dropped),
    "defaultdict": (default_dictionary, ("`groups`", "default_dictionary"), default_dictionary_of_numbers),
    "global": (global_dictionary, ("_FEATURE_CACHE", "global"), global_dictionary_cleared),
    "class attribute": (class_attribute, ("shared_table", "Registry"), class_attribute_reset),
    "lru_cache": (cached_function, ("lru_cache", "positional_table"), cached_function_cleared),
    "partial of partial": (
        partial_of_partial,
        ("`add", "local variable of `partial_of_partial`"),
        partial_dropped,
    ),
    "hook": (hook_collects, ("`outputs`", "hook_collects"), hook_counts),
    "hook of an object": (hook_of_object, ("features", "hook"), hook_of_object_cleared),
    "ctx": (ctx_attribute, ("kept_input", "Scale"), ctx_nothing),
    "default argument": (default_argument, ("`table`", "lookup"), default_argument_made_late),
    "ordered dictionary": (ordered_state, ("`state_dict`", "ordered_state"), ordered_state_dropped),
    "chain": (chain_of_objects, ("`tree.child.child.value`", "chain_of_objects"), chain_of_objects_cut),
    "own list": (own_list_class, ("`kept`", "own_list_class"), own_list_class_cleared),
    "metric with graph": (graph_of_a_metric, ("`losses`", "graph_of_a_metric"), numbers_of_a_metric),
}
