"""Reach the Python processes that a program starts: `memwatch run --children` records them too.

There are two ways. A process of multiprocessing is reached by multiprocessing's own hook after a fork. Every other
Python imports a module `sitecustomize` when it starts: the folder `site` has one, and PYTHONPATH names the folder. It
waits until torch is imported, because most helper processes never import it. Then it runs the `sitecustomize` that
Python would have found without it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def when_torch_is_imported(then: Callable[[], object], before: Callable[[], object] | None = None) -> None:
    """Call a function at the end of the first import of torch; now, if it is imported.

    Args:
        then: the function.
        before: a function to call right before torch's code runs; never called if torch is imported. If that code
            fails, the function is called again before the next attempt.
    """
    if "torch" in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _TorchFinder(then, before))


class _TorchFinder:
    """Finds torch as Python would find it anyway, and calls functions before its code runs and at the end.

    It stays until torch is imported: a library may look torch up long before, as `importlib.util.find_spec("torch")`
    does. It has no base class, because `importlib.abc` takes longer to import than the rest of `import memwatch`.
    """

    def __init__(self, then: Callable[[], object], before: Callable[[], object] | None) -> None:
        self._then = then
        self._before = before
        self._is_looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch" or self._is_looking:
            return None
        import importlib.util

        self._is_looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        loader: Any = None if spec is None else spec.loader
        if hasattr(loader, "exec_module"):
            load = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                vars(loader).pop("exec_module", None)  # a second finder may have removed it
                if self._before is not None:
                    self._before()
                load(module)
                sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
                self._then()

            loader.exec_module = exec_module
        return spec
