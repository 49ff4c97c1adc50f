"""Read the hooks of an autograd node, which torch keeps in C++ and shows nowhere.

``node.register_hook(hook)`` asks a static method of torch to put the hook into the node's dictionary, and hands it
that dictionary. Registering a marker while that method is ours shows the dictionary; raising before anything is
stored leaves the node as it was.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from memwatch._torch.autograd import NODE_HOOKS_WORK, FunctionBase, registering_hooks_by
from memwatch.edges import EdgeKind
from memwatch.heap.tensors import is_python_node, type_dict
from memwatch.signal_handlers import pass_on

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
        ``(kind, dictionary)`` for the post-hooks and the pre-hooks the node has; none where this torch does not
        show them.
    """
    if not NODE_HOOKS_WORK:  # registering would change the node
        return []
    with _LOCK, registering_hooks_by(_show):
        asked = [(kind, _ask(node, name)) for name, kind in _KINDS]
    return [(kind, hooks) for kind, hooks in asked if hooks]


def _show(original: Callable[..., Any], hooks: object, hook: object) -> Any:
    if hook is _MARKER:
        raise _SeenError(hooks)
    return original(hooks, hook)  # another thread registers a hook of its own just now


def _ask(node: object, name: str) -> object:
    register = _registrar(node, name)
    if register is None:
        return None
    try:
        register(node, _MARKER)
    except _SeenError as seen:
        return seen.hooks
    except (RuntimeError, TypeError, AttributeError) as error:
        pass_on(error)
        return None
    return None


def _registrar(node: object, name: str) -> Callable[[object, object], object] | None:
    namespace = vars(FunctionBase) if is_python_node(node) else type_dict(type(node))
    return namespace.get(name)
