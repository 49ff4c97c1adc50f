"""The tree of modules, and their qualified names.

In a program with one model, modules have the names that torch gives them, such as `blocks.0.mlp`. If there are two
models, or if a model is not called as a whole, each name begins with the program's name for the model, as in
`generator.0`.

Some modules of torch wrap a module of the program and add a part to its name: `blocks.0._checkpoint_wrapped_module`.
Users do not see this part in a state dict. Here the wrapper and the wrapped module share the name `blocks.0`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from memwatch.capture.schema import NONE, PLACES_OF_MODULES
from memwatch.kinds.roles import ROLES
from memwatch.words.places import FORMER_MODULE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memwatch.capture import Capture

_KNOWN, _, _FORMER = range(len(PLACES_OF_MODULES))
_PARAMETER = ROLES.index("parameter")
# These names are here and not in `memwatch._torch`: analysis reads captures, and must not import the seam.
_WRAPPED: Final = ("_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod")
"""Under these names a wrapper of torch keeps the wrapped module; torch hides them in the keys of state dicts."""
_WRAPPED_BY_CLASS: Final = {("DistributedDataParallel", "module"), ("DataParallel", "module")}
"""Wrappers whose child has a name that programs use too: the class, and the name of the child."""


class ModuleTree(NamedTuple):
    """Per module: its qualified name, its class, the module that holds it, and the prefix of its parameters' names.

    The prefix is the module's name. For the root of a program's only model it is empty. `wrapped` has the modules
    that share the name of their wrapper. `parents_first` has the modules in an order that puts each after its holder.
    """

    names: list[str]
    classes: list[str]
    parents: list[int]
    prefixes: list[str]
    wrapped: frozenset[int]
    parents_first: list[int]

    def with_ancestors(self, module: int) -> Iterator[int]:
        """Yield a module and the modules that hold it, from the inside out; nothing for -1."""
        while module != NONE:
            yield module
            module = self.parents[module]


def read_modules(capture: Capture, op: int) -> ModuleTree:
    """Return the modules of a capture, with the places that they have when an op runs."""
    local, classes, parents, former = _places(capture, op)
    count = len(local)
    order = _parents_first(parents)
    roots = list(range(count))
    for number in order:
        if parents[number] != NONE:
            roots[number] = roots[parents[number]]
    only = _only_model(capture, parents, roots)
    wrapped = _wrapped(local, classes, parents, former)
    names, prefixes, used = [""] * count, [""] * count, {""}
    last: dict[str, int] = {}
    # first the children of the only model: torch names them, and a variable may have a child's name, such as `model`
    for number in sorted(order, key=lambda number: number == only or roots[number] != only):
        if number in wrapped:
            prefixes[number] = prefixes[parents[number]]
            continue
        name = local[number] or classes[number]
        name = FORMER_MODULE.format(name=name) if former[number] else name
        above = parents[number]
        if above != NONE and prefixes[above]:
            name = f"{prefixes[above]}.{name}"
        if name in used and above == NONE:
            name = classes[number]
        names[number] = name = _unused(name, used, last)
        used.add(name)
        prefixes[number] = "" if number == only else name
    for number in (number for number in order if number in wrapped):
        names[number] = names[parents[number]]
    return ModuleTree(names, classes, parents, prefixes, wrapped, order)


def _wrapped(local: list[str], classes: list[str], parents: list[int], former: list[bool]) -> frozenset[int]:
    """Return the modules that a wrapper of torch holds as its only child."""
    child_count: dict[int, int] = {}
    for parent in parents:
        child_count[parent] = child_count.get(parent, 0) + 1
    return frozenset(
        number
        for number, (name, parent) in enumerate(zip(local, parents, strict=True))
        if parent != NONE
        and child_count[parent] == 1
        and not former[number]
        and (name in _WRAPPED or (classes[parent], name) in _WRAPPED_BY_CLASS)
    )


def _places(capture: Capture, op: int) -> tuple[list[str], list[str], list[int], list[bool]]:
    """Return, per module, its name, its class, its parent, and whether another module has replaced it.

    If several modules had one name in one parent, each replaced the previous one.
    """
    rows = capture.tables["modules"]
    count = int(rows["module"].max()) + 1 if len(rows["module"]) else 0
    local, classes, parents, former = [""] * count, [""] * count, [NONE] * count, [False] * count
    newest: dict[tuple[str, int], int] = {}
    texts = (capture.text(rows["name"]), capture.text(rows["class_name"]))
    columns = (*texts, *(rows[name].tolist() for name in ("parent", "op", "state")))
    for number, name, class_name, parent, seen_op, state in zip(
        rows["module"].tolist(), *columns, strict=True
    ):
        is_first, is_so = not classes[number], seen_op <= op + 1
        if not (is_first or is_so or state == _KNOWN):
            continue
        local[number], classes[number], parents[number] = name, class_name, parent
        former[number] = state == _FORMER
        if is_so and name and parent != NONE and not former[number]:
            before = newest.get((name, parent), number)
            former[before] = before != number
            newest[name, parent] = number
    return local, classes, parents, former


def _parents_first(parents: list[int]) -> list[int]:
    """Return all modules in an order that puts each module after the module that holds it."""
    children: dict[int, list[int]] = {}
    for number, parent in enumerate(parents):
        children.setdefault(parent, []).append(number)
    order, waiting = [], children.get(NONE, [])[::-1]
    while waiting:
        number = waiting.pop()
        order.append(number)
        waiting += children.get(number, [])[::-1]
    return order


def _only_model(capture: Capture, parents: list[int], roots: list[int]) -> int:
    """Return the one tree with parameters or submodules that took part in the block; -1 for none or several."""
    if not roots:
        return NONE
    root_of = np.array(roots)
    grown = set(root_of[np.array(parents) != NONE].tolist())
    roles = capture.tables["roles"]
    owned = (roles["module"] != NONE) & (roles["role"] == _PARAMETER)
    grown |= set(root_of[roles["module"][owned]].tolist())
    used = owned & np.isin(roles["storage"], capture.tables["uses"]["storage"])
    active = set(root_of[roles["module"][used]].tolist())
    active |= set(root_of[capture.tables["calls"]["module"]].tolist())
    models = grown & active or grown
    return models.pop() if len(models) == 1 else NONE


def _unused(name: str, used: set[str], last: dict[str, int]) -> str:
    """Return a name that is not used yet; `last` has the last number that was appended to each name."""
    if name not in used:
        return name
    again = last.get(name, 1) + 1
    while f"{name}#{again}" in used:
        again += 1
    last[name] = again
    return f"{name}#{again}"
