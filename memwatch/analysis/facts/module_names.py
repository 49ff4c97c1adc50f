"""The module that owns a parameter, buffer, gradient or optimizer state, read from the name of its role."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from memwatch.capture.schema import GRADIENT_PREFIX, NONE

if TYPE_CHECKING:
    from memwatch.analysis.facts.categories import Categories
    from memwatch.analysis.facts.made_by import MadeBy
    from memwatch.analysis.facts.places import Places, Texts
    from memwatch.capture import Capture

_OWNED: Final = ("parameter", "unsharded parameter", "buffer", "gradient", "optimizer state")

_QUOTED: Final = re.compile("`(.*)`")
"""The module in the name of a buffer for communication, as "all-gather buffer of `layers.3`"."""


def owning_modules(capture: Capture, places: Places, categories: Categories, made: MadeBy) -> Texts:
    """Return a module per allocation: the owner of what a module owns, else the module whose op made it."""
    parents = capture.tables["modules"]["parent"].tolist()
    known = set(places.module_names)
    roots = [name for name, parent in zip(places.module_names, parents, strict=True) if parent == NONE]
    only_root = roots[0] if len(roots) == 1 else ""
    modules: Texts = made.module_name.copy()
    for allocation, category in enumerate(categories.category):
        if category in _OWNED:
            owner = _owner_in(categories.role_name[allocation])
            modules[allocation] = owner if owner in known else only_root
        elif category == "communication":
            quoted = _QUOTED.search(categories.role_name[allocation])
            if quoted is not None and quoted[1] in known:
                modules[allocation] = quoted[1]
    return modules


def _owner_in(role_name: str) -> str:
    """Return the module in a role's name: `layer.1` of `layer.1.weight`, `grad of layer.1.weight`, `exp_avg[...]`."""
    parameter = role_name.removeprefix(GRADIENT_PREFIX).rpartition("[")[2].removesuffix("]")
    return parameter.rpartition(".")[0]
