"""The module that owns a parameter, buffer, gradient or optimizer state, and its name with the module's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from memwatch.analysis.facts.coded import Coded
from memwatch.capture.schema import GRADIENT_PREFIX, NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.facts.categories import Categories
    from memwatch.analysis.facts.made_by import MadeBy
    from memwatch.analysis.facts.module_tree import ModuleTree

_OWNED: Final = ("parameter", "unsharded parameter", "buffer", "gradient", "optimizer state")

_AS_MADE: Final = -2
"""The number of the module whose op made an allocation; -1 means no module."""

_QUOTED: Final = re.compile("`(.*)`")
"""The module in the name of a buffer for communication, as "all-gather buffer of `layers.3`"."""


def owning_modules(tree: ModuleTree, categories: Categories, made: MadeBy) -> Coded:
    """Return a module per allocation: the module that owns it, or else the module whose op made it."""
    modules, kinds = made.module_name.codes.copy(), categories.category.codes
    known, number_of = _by_suffix(tree.names), {name: number for number, name in enumerate(tree.names)}
    columns = (categories.category, categories.role_name, categories.role_module)
    owner_of_kind = np.full(len(categories.category.values), _AS_MADE, dtype=np.int64)
    for kind, (category, role_name, owner) in enumerate(
        zip(*(column.values.tolist() for column in columns), strict=True)
    ):
        if category in _OWNED:
            named = _owner_in(role_name) if owner == NONE else tree.names[owner]
            # A leaf outside all modules has no module. Its gradient gets the module that computed it.
            unowned = _AS_MADE if category == "gradient" and named not in known else NONE
            owner_of_kind[kind] = number_of.get(known.get(named, ""), unowned)
        elif category == "communication":
            quoted = _QUOTED.search(role_name)
            found = "" if quoted is None else known.get(quoted[1], "")
            owner_of_kind[kind] = number_of.get(found, _AS_MADE)
    owners = owner_of_kind[kinds]
    is_owned = owners != _AS_MADE
    modules[is_owned] = owners[is_owned]
    return Coded(made.module_name.values, modules)


def _by_suffix(names: Sequence[str]) -> dict[str, str]:
    """Return modules by the names that FSDP may use: the whole name, or the unique part after the root's name."""
    known: dict[str, str] = {}
    for name in names:
        for at in (at for at, sign in enumerate(name) if sign == "."):
            suffix = name[at + 1 :]
            known[suffix] = name if known.get(suffix, name) == name else ""
    return {**known, **{name: name for name in names}}


def _owner_in(role_name: str) -> str:
    """Return the module in a role's name, as FSDP gives it: `layer.1` of `layer.1.weight`, `grad of layer.1.weight`."""
    parameter = role_name.removeprefix(GRADIENT_PREFIX).rpartition("[")[2].removesuffix("]")
    return parameter.rpartition(".")[0]


def qualified(role_name: str, module: int, tree: ModuleTree) -> str:
    """Return the name of a role with the module's: `grad of layer.1.weight`, `adamw.exp_avg[layer.1.weight]`."""
    prefix = "" if module == NONE else tree.prefixes[module]
    if not prefix:
        return role_name
    before = GRADIENT_PREFIX if role_name.startswith(GRADIENT_PREFIX) else ""
    if role_name.endswith("]"):
        before = role_name[: role_name.index("[") + 1]
    return f"{before}{prefix}.{role_name.removeprefix(before)}"
