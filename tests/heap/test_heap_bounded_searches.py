"""The searches that run inside the program: their results, the names, the limits."""

from __future__ import annotations

import collections
import concurrent.futures
import gc
import queue
import sys
import weakref

import pytest
import torch
from torch import nn

import memwatch
from memwatch.heap import shapes
from memwatch.heap.classes import derives
from memwatch.heap.known_ways import KnownWays
from memwatch.heap.paths import name_chain
from memwatch.heap.reference_search import ReferenceSearch
from memwatch.heap.referrer_search import living_tensors, referrer_paths
from memwatch.heap.roots import Held, Root, RootKind, call_roots, namespace_roots
from memwatch.heap.shapes import step_of
from memwatch.heap.variable_search import names_in_one_call, names_of_tensors
from memwatch.kinds.edges import Edge, EdgeKind, Vertex, VertexKind

MODEL = nn.Sequential(nn.Linear(8, 8))
CALL = Vertex(VertexKind.FRAME, "train", __file__, 1)
SHARED = {"table": [torch.zeros(3)]}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def paths_to(tensors, roots, *, deep=False):
    """Return the first path that a search finds to each tensor."""
    search = ReferenceSearch(set(), deep=deep, barren=set())
    names = {id(tensor): name for name, tensor in tensors.items()}
    found = {}
    for root in roots:
        for chain in search.tensors(root):
            name = names.get(id(chain[-1]))
            if name is not None and name not in found:
                found[name] = name_chain(chain)
    return found


def roots_of_caller():
    """Return the running calls and the modules' variables, as a sample of the recorder does."""
    spaces = {}
    return [*call_roots(sys._getframe(1), spaces), *namespace_roots(spaces)]


def kinds(path):
    return [edge.kind for edge in path]


def test_the_search_from_running_calls_names_variables_and_what_they_lead_to():
    """A local variable, a list in a dictionary, an attribute, and a module's global, each as typed references."""
    plain = torch.zeros(1)
    box = {"a": [torch.zeros(2)]}
    roots = roots_of_caller()
    wanted = {"local": plain, "item": box["a"][0], "global": SHARED["table"][0], "parameter": MODEL[0].weight}
    found = paths_to(wanted, roots, deep=True)
    assert kinds(found["local"]) == [EdgeKind.LOCAL]
    assert found["local"][0].name == "plain"
    assert kinds(found["item"]) == [EdgeKind.LOCAL, EdgeKind.VALUE, EdgeKind.ITEM]
    assert [edge.name for edge in found["item"][:2]] == ["box", "'a'"]
    assert kinds(found["global"]) == [EdgeKind.GLOBAL, EdgeKind.VALUE, EdgeKind.ITEM]
    assert kinds(found["parameter"]) == [EdgeKind.GLOBAL, EdgeKind.SUBMODULE, EdgeKind.PARAMETER]
    assert found["parameter"][0].owner.name == __name__


def test_only_a_deep_search_goes_into_the_modules_of_a_module():
    """A model's own parameters are known by their role: the search at every peak does not list them."""
    root = Root(RootKind.FRAME, [Held(EdgeKind.LOCAL, "model", MODEL)])
    wanted = {"parameter": MODEL[0].weight}
    assert paths_to(wanted, [root]) == {}
    assert "parameter" in paths_to(wanted, [root], deep=True)


def test_a_search_is_bounded_and_says_so():
    """A root that reaches more objects than the limit is counted; a deep search goes on later."""
    far, near = torch.zeros(1), torch.zeros(1)
    long = [*([paths_to] for _ in range(1500)), [far]]  # gc does not show alone what a function has
    root = Root(RootKind.FRAME, [Held(EdgeKind.LOCAL, "long", long), Held(EdgeKind.LOCAL, "short", [[near]])])
    for deep in (False, True):
        search = ReferenceSearch(set(), deep=deep, barren=set())
        # A long container does not hide other objects.
        assert [chain[-1] is near for chain in search.tensors(root)] == [True]
        assert search.cut_count == 1
        assert [chain[-1] is far for chain in search.rest()] == ([True] if deep else [])


class Box:
    def __init__(self, value):
        self.value = value


KINDS_OF_ITEMS = {
    "lists": lambda value: [value],
    "dictionaries": lambda value: {"value": value},
    "objects": Box,
    "objects in objects": lambda value: Box({"inner": [Box(value)]}),
    "arrays": lambda value: [torch.zeros(3).numpy() if value is None else value.numpy()],
}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("kind", KINDS_OF_ITEMS)
def test_one_of_many_items_that_holds_a_tensor_is_found(kind, deep):
    """The search skips many idle items at a time, but never an item that leads to a tensor."""
    item, wanted = KINDS_OF_ITEMS[kind], torch.zeros(3)
    many = [item(None) for _ in range(250)]
    many[130] = item(wanted)
    root = Root(RootKind.FRAME, [Held(EdgeKind.LOCAL, "many", many)])
    search = ReferenceSearch(set(), deep=deep, barren=set())
    assert wanted.data_ptr() in [chain[-1].data_ptr() for chain in search.tensors(root)]


@pytest.mark.parametrize("kind", ["lists", "dictionaries", "objects", "objects in objects", "modules"])
def test_idle_items_are_not_looked_into_one_by_one(kind):
    """A search makes few calls for each of them, whatever they are made of."""
    item = (lambda value: nn.Identity()) if kind == "modules" else KINDS_OF_ITEMS[kind]
    calls = []
    for count in (1, 1001):
        many = [item(None) for _ in range(count)]
        root = Root(RootKind.FRAME, [Held(EdgeKind.LOCAL, "many", many)])
        search = ReferenceSearch(set(), deep=True, barren=set())
        events = []
        sys.setprofile(lambda frame, event, arg: events.append(event))  # noqa: B023
        try:
            assert list(search.tensors(root)) == []
        finally:
            sys.setprofile(None)
        calls.append(sum(event in {"call", "c_call"} for event in events))
    assert calls[1] - calls[0] < 3 * 1000


class Registry:
    table = torch.zeros(5)


def test_a_class_attribute_is_named_whether_or_not_its_dictionary_is_on_the_way():
    """A bounded search goes from the class to the value, gc through the dictionary between them."""
    namespace = next(held for held in gc.get_referents(Registry) if type(held) is dict)
    for chain in ((Registry, Registry.table), (Registry, namespace, Registry.table)):
        (edge,) = name_chain(chain)
        assert (edge.kind, edge.name) == (EdgeKind.CLASS_ATTRIBUTE, "table")


def test_what_lies_on_an_evaluation_stack_is_the_top_of_its_referrers():
    """A list without a name holds its items. A tensor that only the stack holds has no referrer."""
    found = []

    def look(values, wanted):
        objects = [values]
        tensors = living_tensors({id(wanted): 7}, id, [wanted])
        found.append(referrer_paths(tensors, set(), objects))

    items = [torch.zeros(1), torch.zeros(2)]
    look(items, items[1])
    top, item = found[0][7]
    assert top == Edge(EdgeKind.EVALUATION_STACK, "list")
    assert (item.kind, item.position) == (EdgeKind.ITEM, 1)


def test_a_suspended_generator_has_what_lies_in_its_list_though_it_has_another_item_of_it_too():
    """It was met as the owner of the newest item, which is in a variable of its own as well."""

    def fetched_ahead():
        waiting = []
        while True:
            newest = (torch.zeros(1),)
            waiting.append(newest)
            yield waiting

    batches = fetched_ahead()
    next(batches)
    waiting = next(batches)
    tensors = {number: [item[0]] for number, item in enumerate(waiting)}
    paths = referrer_paths(tensors, set(), [batches, waiting, *waiting])
    variables = [(paths[number][1].kind, paths[number][1].name) for number in tensors]
    assert variables == [(EdgeKind.LOCAL, "waiting"), (EdgeKind.LOCAL, "newest")]
    assert all(path[0] == Edge(EdgeKind.EVALUATION_STACK, "generator") for path in paths.values())


def test_what_a_module_holds_is_told_of_as_its_global():
    """A module that no running call belongs to is found from the tensor up."""
    module = type(sys)("library")
    module.cache = [torch.zeros(1)]
    tensors = living_tensors({id(module.cache[0]): 3}, id, [module.cache[0]])
    path = referrer_paths(tensors, set(), [module, module.__dict__, module.cache])[3]
    assert kinds(path) == [EdgeKind.MODULE, EdgeKind.GLOBAL, EdgeKind.ITEM]
    assert [edge.name for edge in path[:2]] == ["library", "cache"]


class Loop:
    """An object that only a collection frees."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("changes", range(16))
@pytest.mark.parametrize("kind", [collections.deque, set, dict])
def test_a_container_that_a_collection_changes_while_it_is_copied_is_copied_again(kind, changes):
    """A weakref's callback that appends, in a collection that the copy sets off, ends no search."""
    value = torch.zeros(1)
    container = {"first": value} if kind is dict else kind([value])
    append = {
        collections.deque: lambda: container.append([]),
        set: lambda: container.add(object()),
        dict: lambda: container.update({object(): []}),
    }[kind]
    references = []

    def change(_):
        append()
        if len(references) < changes:
            references.append(weakref.ref(Loop(), change))

    step = step_of(kind, deep=False)
    thresholds = gc.get_threshold()
    gc.collect()
    if changes:
        references.append(weakref.ref(Loop(), change))
    gc.set_threshold(1, 1000, 1000)
    try:
        held = [chain[-1] for chain in step(container)]
    finally:
        gc.set_threshold(*thresholds)
    assert any(each is value for each in held)


@pytest.mark.parametrize("changes", range(1, 13))
@pytest.mark.parametrize("kind", [collections.deque, dict])
def test_a_container_that_a_collection_changes_while_it_is_named_is_named(kind, changes):
    """A weakref's callback that appends, in a collection that the naming sets off, ends no search."""
    value = torch.zeros(1)
    container = collections.deque([0, value]) if kind is collections.deque else {0: 0, value: 1}
    references = []

    def change(_):
        container.append([]) if kind is collections.deque else container.update({object(): []})
        if len(references) < changes:
            references.append(weakref.ref(Loop(), change))

    thresholds = gc.get_threshold()
    gc.collect()
    references.append(weakref.ref(Loop(), change))
    gc.set_threshold(1, 1000, 1000)
    try:
        (edge,) = name_chain((container, value))
    finally:
        gc.set_threshold(*thresholds)
    assert edge.kind is (EdgeKind.ITEM if kind is collections.deque else EdgeKind.KEY)


def test_a_tuple_that_is_being_filled_is_named():
    """A tuple that C code fills has empty places, which gc shows. The search skips them."""
    found = []

    def the_tensor_of_five():
        return next(obj for obj in gc.get_objects() if type(obj) is torch.Tensor and obj.shape == (5,))

    def items():
        yield torch.ones(5)
        found.append(referrer_paths({7: [the_tensor_of_five()]}, set()))
        yield 2

    assert len(tuple(items())) == 2
    (edge, *more) = found[0][7]
    assert edge == Edge(EdgeKind.EVALUATION_STACK, "tuple")
    assert [step.kind for step in more] == [EdgeKind.REFERENCE]


@pytest.mark.parametrize("tool", ["a block", "the test's request"])
def test_what_a_tool_keeps_is_not_looked_into(tool, request):
    """Objects of memwatch, and of the test runner, may be variables of the program.

    The program is not responsible for their memory.
    """
    variable = memwatch.profile() if tool == "a block" else request
    variable.kept = torch.ones(5)
    try:
        root = Root(RootKind.NAMESPACE, [Held(EdgeKind.GLOBAL, "variable", variable)])
        assert paths_to({"kept": variable.kept}, [root], deep=True) == {}
    finally:
        del variable.kept


def test_a_way_that_a_search_found_is_gone_again_by_its_names():
    """After a deep search has found a path, a look along its names finds the tensor that is there now, or none."""

    class Cache:
        def __init__(self):
            self.layers = [{"keys": torch.zeros(1)}]

    cache, ways = Cache(), KnownWays()
    before = cache.layers[0]["keys"]

    def root_of(value):
        return Root(RootKind.FRAME, [Held(EdgeKind.LOCAL, "cache", value, CALL)])

    ways.learn((root_of(cache), cache, vars(cache), cache.layers, cache.layers[0], before))
    after = cache.layers[0]["keys"] = torch.ones(1)
    ((found, path),) = ways.tensors(root_of(cache))
    assert found is after
    assert kinds(path) == [EdgeKind.LOCAL, EdgeKind.ATTRIBUTE, EdgeKind.ITEM, EdgeKind.VALUE]
    cache.layers.clear()
    assert list(ways.tensors(root_of(cache))) == []
    assert list(ways.tensors(root_of(None))) == []


def test_a_search_looks_into_queues_and_futures():
    """A queue and a future hold the objects that are put into them, though their classes are of Python's library."""
    ready, future = queue.Queue(), concurrent.futures.Future()
    waiting, result = torch.zeros(1), torch.zeros(2)
    ready.put((waiting, 0))
    future.set_result(result)
    root = Root(
        RootKind.FRAME,
        [Held(EdgeKind.LOCAL, name, value, CALL) for name, value in (("ready", ready), ("future", future))],
    )
    found = paths_to({"waiting": waiting, "result": result}, [root])
    assert [edge.name for edge in found["waiting"]][:2] == ["ready", "queue"]
    assert [edge.name for edge in found["result"]] == ["future", "_result"]


def test_rows_of_numbers_do_not_hide_what_lies_among_them():
    """In a long list of short lists, plain rows are skipped. A row with a tensor, or of a subclass, is not."""

    class Row(list):
        pass

    among, attached = torch.zeros(2), torch.zeros(3)
    row = Row([1, 2])
    row.tensor = attached
    rows = [[number, "text", 0.5] for number in range(500)]
    rows[300], rows[400] = [1, among], row
    root = Root(RootKind.FRAME, [Held(EdgeKind.LOCAL, "rows", rows)])
    found = paths_to({"among": among, "attached": attached}, [root])
    assert sorted(found) == ["among", "attached"]


@pytest.mark.parametrize(
    "around",
    [
        lambda array: (array, 0),
        lambda array: (0, array),
        lambda array: ((0, array), "text"),
        lambda array: {"array": array},
        lambda array: {"number": 0, "array": array},
        lambda array: {"number": 0, "pair": (0, array)},
    ],
)
def test_an_array_in_a_container_that_gc_does_not_track_is_found(around):
    """The collector does not track arrays, nor tuples and dictionaries that have only arrays and numbers."""
    tensor = torch.zeros(3)
    container = around(tensor.numpy())
    gc.collect()
    gc.collect()  # the outer tuple
    root = Root(RootKind.FRAME, [Held(EdgeKind.LOCAL, "container", container, CALL)])
    chains = ReferenceSearch(set(), deep=False, barren=set()).tensors(root)
    assert [chain[-1].data_ptr() for chain in chains] == [tensor.data_ptr()]


def test_the_search_for_the_names_of_leaves_follows_no_more_than_it_may():
    """The value of a variable is named whatever the limit. Objects behind it count against the limit."""
    leaf, behind = torch.ones(3, requires_grad=True), [torch.ones(3, requires_grad=True)]
    idle = [[index] for index in range(200)]
    names, followed = names_of_tensors([leaf, behind[0]], sys._getframe(), most_ways=0)
    assert (names, followed) == ({id(leaf): "leaf"}, 0)
    names, followed = names_of_tensors([leaf, behind[0]], sys._getframe(), most_ways=100_000)
    assert names == {id(leaf): "leaf", id(behind[0]): "behind[0]"}
    assert followed > len(idle)


def test_each_row_of_the_shapes_is_the_row_of_its_class():
    """A row behind the row of one of its bases would never count for a search."""
    rows = list(shapes._SHAPES)
    firsts = [next(row for row in rows if derives(shape.base, row.base)) for shape in rows]
    assert [first.base for first in firsts] == [shape.base for shape in rows]


def test_a_model_that_a_module_only_holds_is_named_by_its_attribute():
    """The program calls the generator itself, so it is a model of its own, and no variable leads to it."""
    gan = torch.nn.Module()
    gan.generator, gan.layers = torch.nn.Linear(2, 2), torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    found = names_in_one_call((gan.generator, gan.layers[0]), sys._getframe())
    assert found.names == {id(gan.generator): "gan.generator"}
