"""Read the hooks of an autograd node, which torch keeps in C++ and shows nowhere.

``node.register_hook(hook)`` asks the static method ``_register_hook`` of ``torch.autograd.function``
to put the hook into the node's dictionary, and hands it that dictionary. Registering a marker while that method
is ours shows the dictionary; raising before anything is stored leaves the node as it was.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from torch.autograd.function import _HookMixin

from memwatch.edges import EdgeKind
from memwatch.heap.tensors import is_python_node, type_dict

if TYPE_CHECKING:
    from collections.abc import Callable

_MARKER: Final = object()
_KINDS: Final = (
    ("register_hook", EdgeKind.NODE_HOOKS),
    ("register_prehook", EdgeKind.NODE_PREHOOKS),
)
_LOCK: Final = threading.Lock()


class _SeenError(Exception):
    """Leaves ``register_hook`` before it has changed anything; carries the dictionary."""

    def __init__(self, hooks: object) -> None:
        super().__init__()
        self.hooks = hooks


def node_hooks(node: object) -> list[tuple[EdgeKind, object]]:
    """Return the hook dictionaries of one autograd node, each with its kind.

    Args:
        node: a C++ autograd node, or the ``ctx`` of a custom Function.

    Returns:
        ``(kind, dictionary)`` for the post-hooks and the pre-hooks the node has.
    """
    found = []
    with _LOCK:
        original = type_dict(_HookMixin)["_register_hook"]

        def show(hooks: object, hook: object) -> Any:
            if hook is _MARKER:
                raise _SeenError(hooks)
            return original.__func__(hooks, hook)  # another thread registers a hook of its own just now

        _HookMixin._register_hook = staticmethod(show)  # type: ignore[method-assign]
        try:
            for name, kind in _KINDS:
                hooks = _ask(node, name)
                if hooks:
                    found.append((kind, hooks))
        finally:
            _HookMixin._register_hook = original  # type: ignore[method-assign]
    return found


def _ask(node: object, name: str) -> object:
    register = _registrar(node, name)
    if register is None:
        return None
    try:
        register(node, _MARKER)
    except _SeenError as seen:
        return seen.hooks
    except (RuntimeError, TypeError, AttributeError):
        return None
    return None


def _registrar(node: object, name: str) -> Callable[[object, object], object] | None:
    import torch

    namespace = torch._C._FunctionBase.__dict__ if is_python_node(node) else type_dict(type(node))
    return namespace.get(name)
