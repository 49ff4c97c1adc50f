"""Which autograd formulas run other ops while a dispatch mode is on, read from the profiler's event tree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from compat_harness import EmptyMode
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

_NODE = "autograd::engine::evaluate_function: "
_VIEWS = {"detach", "aten::detach", "aten::view", "aten::_reshape_alias", "aten::reshape", "aten::as_strided"}
_ADD = Counter({"aten::add": 1, "aten::add_": -1})


@dataclass
class Trace:
    """What one run showed: the ops of the forward, and of every node with the forward op that made it."""

    forward: list[str]
    nodes: dict[int, tuple[str, list[str]]]
    maker: dict[int, str]


def trace(program: Callable[[], Any]) -> Trace:
    """Run a program and read its ops; an op that dispatches to itself again counts once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        program()
    found = Trace([], {}, {})
    order = 0
    for root in _sorted(profiler.profiler.kineto_results.experimental_event_tree()):  # type: ignore[union-attr]
        if root.tag != _EventType.TorchOp:
            continue
        if root.name.startswith(_NODE):
            names: list[str] = []
            _collect(root, root.name, names, {})
            found.nodes[order] = (root.name.removeprefix(_NODE), names)
            found.maker[order] = str(root.extra_fields.sequence_number)
            order += 1
        else:
            found.forward.append(root.name)
            _collect(root, root.name, found.forward, {})
    return found


def _collect(node: Any, parent: str, names: list[str], makers: dict[int, str]) -> None:
    for child in _sorted(node.children):
        if child.tag != _EventType.TorchOp:
            continue
        if child.name == "PythonDispatchMode":
            _collect(child, parent, names, makers)
            continue
        if child.name != parent and child.name not in _VIEWS:
            names.append(child.name)
        _collect(child, child.name, names, makers)


def _sorted(nodes: Any) -> list[Any]:
    return sorted(nodes, key=lambda node: node.start_time_ns)


@dataclass
class Changes:
    """Nodes whose formula ran other ops under a mode, and whether the forward or an accumulation did."""

    nodes: dict[str, tuple[Counter[str], Counter[str]]]
    forward: tuple[Counter[str], Counter[str]] | None
    accumulates: bool


def changes(program: Callable[[], Any]) -> Changes:
    """Compare a program's ops plainly and under an empty mode."""

    def under_mode() -> Any:
        with EmptyMode():
            return program()

    program()
    plain, moded = trace(program), trace(under_mode)
    grouped: dict[str, list[Counter[str]]] = defaultdict(lambda: [Counter(), Counter()])
    for index, run in enumerate((plain, moded)):
        for name, ops in run.nodes.values():
            grouped[name][index].update(ops)
    found: dict[str, tuple[Counter[str], Counter[str]]] = {}
    accumulates = False
    for name, (before, after) in grouped.items():
        lost, gained = before - after, after - before
        added = min(lost["aten::add_"], gained["aten::add"])
        accumulates = accumulates or added > 0
        lost, gained = lost - Counter({"aten::add_": added}), gained - Counter({"aten::add": added})
        lost, gained = +lost, +gained
        if (lost or gained) and not name.startswith(("View", "ReshapeAlias", "UnsafeView")):
            found[name] = (lost, gained)
    before, after = Counter(plain.forward), Counter(moded.forward)
    forward = None if before == after else (before - after, after - before)
    return Changes(found, forward, accumulates)
