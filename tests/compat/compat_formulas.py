"""Which autograd formulas run other ops while a dispatch mode is on, read from the profiler's event tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from compat_harness import EmptyMode
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

_NODE = "autograd::engine::evaluate_function: "
_VIEWS = {"detach", "aten::detach", "aten::view", "aten::_reshape_alias", "aten::reshape", "aten::as_strided"}
_SHAPES_ONLY = ("View", "ReshapeAlias", "UnsafeView")


def changed_nodes(program: Callable[[], Any]) -> set[str]:
    """Name the autograd nodes of a program whose ops differ under an empty mode, sums of gradients aside."""

    def under_mode() -> Any:
        with EmptyMode():
            return program()

    program()
    plain, moded = _ops_of_nodes(program), _ops_of_nodes(under_mode)
    found = set()
    for name in {*plain, *moded}:
        lost, gained = plain[name] - moded[name], moded[name] - plain[name]
        sums = min(lost["aten::add_"], gained["aten::add"])  # a tensor used more than once
        lost, gained = lost - Counter({"aten::add_": sums}), gained - Counter({"aten::add": sums})
        if (lost or gained) and not name.startswith(_SHAPES_ONLY):
            found.add(name)
    return found


def _ops_of_nodes(program: Callable[[], Any]) -> Counter[Any]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        program()
    found: dict[str, Counter[str]] = Counter()  # type: ignore[assignment]
    for root in profiler.profiler.kineto_results.experimental_event_tree():  # type: ignore[union-attr]
        if root.tag == _EventType.TorchOp and root.name.startswith(_NODE):
            name = root.name.removeprefix(_NODE)
            found.setdefault(name, Counter())
            found[name].update(_names(root, root.name))
    return _Missing(found)


class _Missing(dict):  # type: ignore[type-arg]
    def __missing__(self, key: str) -> Counter[str]:
        return Counter()


def _names(node: Any, parent: str) -> list[str]:
    """List the ops below a node. An op that dispatches to itself again counts once."""
    names = []
    for child in node.children:
        if child.tag != _EventType.TorchOp:
            continue
        inside = parent if child.name == "PythonDispatchMode" else child.name
        if inside not in (parent, *_VIEWS):
            names.append(child.name)
        names += _names(child, inside)
    return names
