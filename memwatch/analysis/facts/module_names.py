"""The module that owns a parameter, buffer, gradient or optimizer state, and its name with the module's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from memwatch.capture.schema import GRADIENT_PREFIX, NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memwatch.analysis.facts.categories import Categories
    from memwatch.analysis.facts.made_by import MadeBy
    from memwatch.analysis.facts.module_tree import ModuleTree
    from memwatch.analysis.facts.places import Texts

_OWNED: Final = ("parameter", "unsharded parameter", "buffer", "gradient", "optimizer state")

_QUOTED: Final = re.compile("`(.*)`")
"""The module in the name of a buffer for communication, as "all-gather buffer of `layers.3`"."""


def owning_modules(tree: ModuleTree, categories: Categories, made: MadeBy) -> Texts:
    """Return a module per allocation: the owner of what a module owns, else the module whose op made it."""
    modules: Texts = made.module_name.copy()
    known = _by_suffix(tree.names)
    for allocation, category in enumerate(categories.category):
        if category in _OWNED:
            owner = categories.role_module[allocation]
            named = _owner_in(categories.role_name[allocation]) if owner == NONE else tree.names[owner]
            modules[allocation] = known.get(named, "")
        elif category == "communication":
            quoted = _QUOTED.search(categories.role_name[allocation])
            found = "" if quoted is None else known.get(quoted[1], "")
            modules[allocation] = found or modules[allocation]
    return modules


def _by_suffix(names: Sequence[str]) -> dict[str, str]:
    """Return modules by what FSDP may call them: the whole name, or what follows its root's, if that is one's alone."""
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
