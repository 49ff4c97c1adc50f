"""Let a process import torch's compiler when a program compiles, and not when it makes an optimizer.

The first optimizer of a process imports `torch._dynamo`, for two functions that do nothing while nothing is compiled.
The import takes a second, and 120,000 more objects are on the heap that each later search visits. Here a stand-in has
the two functions. It imports the real module as soon as anybody asks for more.

Pytester takes the modules away that an inner session imported, and torch cannot import its compiler twice. So inner
sessions that compile need the real module before they begin.

This is for the sample of `--cases`. With all cases an optimizer imports the compiler, as it does for the user.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types

import torch

_NAME = "torch._dynamo"


class LateDynamo(types.ModuleType):
    """The stand-in for `torch._dynamo`."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.__spec__ = importlib.util.find_spec(_NAME)
        self.__path__ = list(self.__spec__.submodule_search_locations)
        self._functions = []

    def graph_break(self, *_):
        """Do nothing, as the real one does outside of compiled code."""

    def disable(self, function=None, *arguments, **options):
        """Return the function itself, if torch asks: nothing compiles it before the real module is there."""
        if function is None or sys._getframe(1).f_globals["__name__"] != "torch._compile":
            return self.real().disable(function, *arguments, **options)
        self._functions.append(function)
        return function

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)  # whoever looks through all modules wants no import
        return getattr(self.real(), name)

    def real(self):
        """Import the real module, which takes this one's place."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
            for function in self._functions:  # torch has noted the answer on each, and now asks again
                vars(function).pop("__dynamo_disable", None)
            self._functions.clear()
        return importlib.import_module(_NAME)


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the real module before any module inside it."""

    def find_spec(self, name, path, target=None):
        late = sys.modules.get(_NAME)
        if not name.startswith(f"{_NAME}.") or not isinstance(late, LateDynamo):
            return None
        late.real()
        return importlib.machinery.ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec):
        """Return the module, which the import of the real one has run."""
        module = sys.modules[spec.name]
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module):
        module.__spec__ = module.__spec__.loader_state


def put_in_place() -> None:
    """Let this process import the compiler late, unless it has imported it."""
    if _NAME not in sys.modules:
        sys.modules[_NAME] = torch._dynamo = LateDynamo()
        sys.meta_path.insert(0, _Submodules())
