"""The module that owns a parameter, buffer, gradient or optimizer state, and its name with the module's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from memwatch.capture.schema import GRADIENT_PREFIX, NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.categories import Categories
    from memwatch.analysis.facts.made_by import MadeBy
    from memwatch.analysis.facts.module_tree import ModuleTree
    from memwatch.analysis.facts.places import Texts

_OWNED: Final = ("parameter", "buffer", "gradient", "optimizer state")


def owning_modules(tree: ModuleTree, categories: Categories, made: MadeBy) -> Texts:
    """Return a module per allocation: the owner of what a module owns, else the module whose op made it."""
    modules: Texts = made.module_name.copy()
    for allocation, category in enumerate(categories.category):
        if category in _OWNED:
            owner = categories.role_module[allocation]
            modules[allocation] = "" if owner == NONE else tree.names[owner]
    return modules


def qualified(role_name: str, module: int, tree: ModuleTree) -> str:
    """Return the name of a role with the module's: `grad of layer.1.weight`, `adamw.exp_avg[layer.1.weight]`."""
    prefix = "" if module == NONE else tree.prefixes[module]
    if not prefix:
        return role_name
    before = GRADIENT_PREFIX if role_name.startswith(GRADIENT_PREFIX) else ""
    if role_name.endswith("]"):
        before = role_name[: role_name.index("[") + 1]
    return f"{before}{prefix}.{role_name.removeprefix(before)}"
