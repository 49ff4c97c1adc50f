"""A step as one program for the planner: the graphs of a compiled callable, forward by forward, then backward.

What the first graphs keep for their backward is alive while the later ones run, so they share one budget. A graph
break gives the output of one graph to the next; both know its storage by one name then. Each graph is executed by
itself, so the planned order is cut into one order for each.

`order_of_torch` writes the order in which torch's own partition would run the step. The partition says what the forward
keeps. The backward computes the rest again, right before its use or, earlier, where torch's backward computes it.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from memwatch._torch.dispatch import OpOverload, base_name_of
from memwatch._torch.traced_graphs import size_at
from memwatch.encoding.values import Value, leaves
from memwatch.planner import Effect, Graph, OpSpec, OrderError, Schedule, Step, StepKind, simulate
from memwatch.planner.request import op_text
from memwatch.replay.fx import (
    BOUNDARY,
    GraphReader,
    crossing_node,
    hinted,
    is_op,
    is_tangent,
    mutated_inputs,
    plain_outputs,
)
from memwatch.replay.op_workspace import Workspaces
from memwatch.replay.rewrite import Move
from memwatch.words.places import place_in_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.planner import Plan
    from memwatch.planner.graph import Name


LEAVE: Final = "your code after the forward"
"""Name of the op that stands for it: it reads the forward's outputs."""
KEPT: Final = "tensors that your code after the forward keeps"
"""Name of the buffer that stands for it."""
DONE: Final = "your code after the backward"
"""Name of the op that stands for it: it adds up gradients."""


@dataclass(frozen=True, eq=False)
class GraphRun:
    """A graph that takes part in a step.

    Attributes:
        module: the joint graph of forward and backward, or a graph without backward.
        num_fwd_outputs: how many outputs belong to the forward; None without backward.
        saved: names of the nodes that torch's own partition keeps for the backward.
        torch_backward_nodes: names of the nodes that its backward runs, in order.
        values: symbol -> its value.
        inputs, outputs: addresses of the storages it was given and gave; empty if not known.
        released: which outputs the program no longer holds when the backward begins, as far as it was seen.
        outside_bytes: what the code after its forward allocated beyond the graph's own storages, at most.
        kept_bytes: what of that was still there when the next forward began; its own backward comes before this one.
    """

    module: fx.GraphModule
    num_fwd_outputs: int | None
    saved: frozenset[str]
    torch_backward_nodes: tuple[str, ...] = ()
    values: Mapping[Any, int] = field(default_factory=dict)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    released: frozenset[int] = frozenset()
    outside_bytes: int = 0
    kept_bytes: int = 0

    def size_of(self, size: Value) -> int:
        """Return a size as a number."""
        if isinstance(size, int):
            return size
        found = size_at(size, self.values) if self.values else None
        return hinted(size) if found is None else found


@dataclass
class Part:
    """What one graph adds to the program.

    Attributes:
        run: the graph.
        reader: its nodes as ops and buffers.
        prefix: what the names of its ops begin with.
        early, late: ops of its forward, and of its backward.
        given: buffers that the forward gives to the program.
        released: those of them that the program no longer holds when the backward begins.
        flowing: those of them that a later graph is given.
        added: gradients that are added to those of an earlier backward.
    """

    run: GraphRun
    reader: GraphReader
    prefix: str
    early: list[OpSpec]
    late: list[OpSpec]
    given: list[str]
    released: set[str]
    flowing: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)


def holders(part: Part) -> dict[Name, str]:
    """Return the buffers of a graph that can be moved out and back -> the name of the node that holds each.

    What the program or another graph is given stays: they hold it. A copy of what is written later would be old.
    """
    ops = (*part.early, *part.late)
    fixed = {*part.given, *part.reader.keep, *part.flowing, *(name for spec in ops for name in spec.writes)}
    nodes = {node.name: node for node in part.run.module.graph.nodes}
    found: dict[Name, str] = {}
    for spec in ops:
        node = nodes[str(spec.name)[len(part.prefix) :]]
        items = [user for user in node.users if user.target is operator.getitem]
        for name in spec.makes:
            own = [
                each for each in (node, *items) if part.reader.buffers[each] == (name,) and _is_plain(each)
            ]
            if name not in fixed and len(own) == 1:
                found[name] = own[0].name
    return found


def _is_plain(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return not (value.is_conj() or value.is_neg())


_LINE: Final = re.compile(r'File "(.+?)", line (\d+)')
"""File and line of an entry of a formatted stack, which dynamo keeps with each node."""


@dataclass
class Orders:
    """The orders of a plan: for each graph the names of its nodes, with `BOUNDARY` between forward and backward.

    Between the names stand moves, as `Move`: those of a graph's order name the node that holds the buffer.

    Attributes:
        of_graphs: the orders.
        whole: the order of the step.
        peak_increase_bytes: the peak of the whole step, executed so.
        extra_cost_ratio: cost of what is computed again, as a share of the step's cost.
    """

    of_graphs: list[list[str | Move]]
    peak_increase_bytes: int
    extra_cost_ratio: float = 0.0
    whole: list[Name] = field(default_factory=list, repr=False)


class StepModel:
    """The program of a step.

    Args:
        runs: the graphs, in the order of their forwards. Backwards come in the reverse order.
        device: device whose workspaces count.

    Attributes:
        graph: the program for the planner.
        movable: the buffers that can be moved out and back.
    """

    def __init__(self, runs: Sequence[GraphRun], device: str) -> None:
        self._device = device
        self._parts: list[Part] = []
        self._produced: dict[int, str] = {}
        self._external: dict[int, str] = {}
        for number, run in enumerate(runs):
            self._parts.append(self._read(run, f"graph {number + 1}: " if number else ""))
        self._owner = {
            spec.name: number for number, part in enumerate(self._parts) for spec in (*part.early, *part.late)
        }
        self.graph = self._build()
        self._holders = {
            name: (number, node)
            for number, part in enumerate(self._parts)
            for name, node in holders(part).items()
        }
        self.movable = frozenset(self._holders)

    def text_of(self, name: Name) -> str:
        """Name an op for people, by its overload and by the program's line that called it or that it differentiates."""
        if name not in self._owner:
            return op_text(name)
        part = self._parts[self._owner[name]]
        node = next(
            each for each in part.run.module.graph.nodes if each.name == str(name)[len(part.prefix) :]
        )
        target: Any = node.target
        text = str(base_name_of(target)) if isinstance(target, OpOverload) else op_text(name)
        lines = _LINE.findall(node.meta.get("stack_trace") or "")
        if not lines:
            return text
        file, line = lines[-1]
        of = "the backward of " if any(spec.name == name for spec in part.late) else ""
        return f"{text} ({of}{place_in_file(f'{file}:{line}')})"

    def _read(self, run: GraphRun, prefix: str) -> Part:
        workspaces = Workspaces(run.size_of, self._device)
        workspaces.measure(node for node in run.module.graph.nodes if is_op(node))
        primals = [node for node in run.module.graph.find_nodes(op="placeholder") if not is_tangent(node)]
        known: dict[fx.Node, str] = {}
        addresses = dict(zip(primals, run.inputs, strict=True)) if len(primals) == len(run.inputs) else {}
        for node, address in addresses.items():
            name = self._produced.get(address) or self._external.get(address)
            if name is not None:
                known[node] = name
        reader = GraphReader(prefix, known, run.size_of, workspaces)
        crossing = None if run.num_fwd_outputs is None else crossing_node(run.module.graph)
        outputs = list(leaves(run.module.graph.output_node().args))[: run.num_fwd_outputs]
        turn = -1
        for node in run.module.graph.nodes:
            if node is crossing:
                turn = len(reader.ops)
            reader.read(node)
        early, late = (reader.ops, []) if turn < 0 else (reader.ops[:turn], reader.ops[turn:])
        part = Part(run, reader, prefix, early, late, _buffers(reader, outputs), _released(run, reader))
        for node, address in addresses.items():
            if reader.buffers[node] and address not in self._produced:
                self._external.setdefault(address, reader.buffers[node][0])
        self._note_flow(part, outputs, primals)
        return part

    def _note_flow(self, part: Part, outputs: list[Value], primals: list[fx.Node]) -> None:
        """Note what later graphs may be given, and which gradients go to an earlier graph or are added to others."""
        for node, address in zip(outputs, part.run.outputs, strict=False):
            if isinstance(node, fx.Node) and part.reader.buffers[node] and address:
                self._produced[address] = part.reader.buffers[node][0]
        own = {name for spec in (*part.early, *part.late) for name in spec.makes}
        taken = {part.reader.given[node] for node in primals if node in part.reader.given} - own
        for earlier in self._parts:
            earlier.flowing |= taken.intersection(earlier.given)

    def _gradients(self, part: Part) -> list[tuple[str, str]]:
        """Return (name of an input, name of its gradient) as far as they are known."""
        outputs = list(leaves(part.run.module.graph.output_node().args))
        gradients = outputs[part.run.num_fwd_outputs :]
        primals = [
            node for node in part.run.module.graph.find_nodes(op="placeholder") if not is_tangent(node)
        ]
        if part.run.num_fwd_outputs is None or len(primals) != len(gradients):
            return []
        return [
            (part.reader.buffers[primal][0], name)
            for primal, node in zip(primals, gradients, strict=True)
            if isinstance(node, fx.Node) and part.reader.buffers[primal]
            for name in part.reader.buffers[node]
        ]

    def _build(self) -> Graph:
        ops: list[OpSpec] = []
        keep: dict[str, None] = {}
        for part in self._parts:
            # to make anew what stays with the program, or with another graph, frees nothing
            stays = part.flowing | (set(part.given) - part.released)
            part.early = [
                dataclasses.replace(spec, recomputable=False) if spec.makes.keys() & stays else spec
                for spec in part.early
            ]
            ops += part.early
            ops.append(_leave(part))
            passing = part.flowing | part.released
            keep.update((name, None) for name in part.reader.keep if name not in passing)
        arriving: dict[str, list[str]] = {}
        has_gradient: set[str] = set()
        for part in reversed(self._parts):
            if part.run.num_fwd_outputs is None:
                continue
            for source, gradient in self._gradients(part):
                if source in has_gradient:
                    part.added.add(gradient)
                    keep.pop(gradient, None)
                elif any(source in other.flowing for other in self._parts):
                    arriving.setdefault(source, []).append(gradient)
                    keep.pop(gradient, None)
                else:
                    has_gradient.add(source)
            flown = [name for output in part.flowing for name in arriving.get(output, [])]
            flown += [part.prefix + KEPT] if part.run.kept_bytes else []
            tangents: dict[Name, int] = dict(part.reader.tangents)
            ops.append(OpSpec(part.prefix + BOUNDARY, flown, tangents, 0.0, effect=Effect.UNKNOWN))
            ops += part.late
            if part.added:
                ops.append(OpSpec(part.prefix + DONE, sorted(part.added), effect=Effect.UNKNOWN, cost=0.0))
        made = {name for spec in ops for name in spec.makes}
        used = {name for spec in ops for name in (*spec.reads, *spec.writes)}
        inputs = {
            name: nbytes
            for part in self._parts
            for name, nbytes in part.reader.inputs.items()
            if name in used and name not in made
        }
        return Graph.build(ops, [name for name in keep if name in made | used], external_nbytes=inputs)

    def torch_partition_order(self) -> list[Name] | None:
        """Return the order in which torch's own partition would run the step; None if it cannot be told.

        What it does not keep is computed again: where torch's backward does so, or right before its use, whichever
        has the lower peak.
        """
        orders = [order_of_torch(self._parts, self.graph, as_torch=as_torch) for as_torch in (False, True)]
        peaks = [
            (peak, number) for number, order in enumerate(orders) if (peak := self.peak_of(order)) is not None
        ]
        return orders[min(peaks)[1]] if peaks else None

    def peak_of(self, order: Sequence[Name]) -> int | None:
        """Return the peak increase of a step in this order; None if it is not valid."""
        schedule = Schedule.of(map(self._step, order))
        try:
            return simulate(self.graph, schedule).peak_bytes - self.graph.baseline_bytes
        except OrderError:
            return None

    def with_states(self, order: Sequence[Name], states: Sequence[Mapping[str, str]]) -> list[Name]:
        """Return an order of the step from before random states were kept, given which op stands before which."""
        before: dict[Name, Name] = {
            part.prefix + name: part.prefix + state
            for part, names in zip(self._parts, states, strict=True)
            for name, state in names.items()
        }
        return [each for name in order for each in (before.pop(name, None), name) if each is not None]

    def with_parts(self, order: Sequence[Name], parts: Sequence[Mapping[str, str]]) -> list[Name]:
        """Return an order of the step from before ops were taken apart, given the names of their other parts."""
        others: dict[Name, Name] = {
            part.prefix + name: part.prefix + other
            for part, names in zip(self._parts, parts, strict=True)
            for name, other in names.items()
        }
        return [each for name in order for each in (name, others.get(name)) if each is not None]

    def _step(self, name: Name) -> Step:
        if isinstance(name, Move):
            return Step(name.kind, self.graph.buffer_index[name.what])
        return Step(StepKind.COMPUTE, self.graph.op_index[name])

    def steps_of(self, plan: Plan) -> list[Name]:
        """Return the steps of a plan of this graph: names of ops, and moves."""
        return [
            self.graph.op_names[target]
            if kind == StepKind.COMPUTE
            else Move(kind, self.graph.buffer_names[target])
            for kind, target in plan.schedule
        ]

    def cut(self, order: Sequence[Name]) -> Orders | None:
        """Return the order of each graph in a planned order of the step; None if it does not hold when cut.

        A step of the plan that stands where another graph runs goes to where its own graph runs next.
        """
        early: list[list[Name]] = [[] for _ in self._parts]
        late: list[list[Name]] = [[] for _ in self._parts]
        left: set[int] = set()
        leave = {part.prefix + LEAVE: number for number, part in enumerate(self._parts)}
        for name in order:
            if name in leave:
                left.add(leave[name])
            elif name in self._owner or isinstance(name, Move):
                number = self._holders[name.what][0] if isinstance(name, Move) else self._owner[name]
                is_early = number not in left or self._parts[number].run.num_fwd_outputs is None
                # a copy that is to be made while another graph runs is made before it: later it frees nothing
                is_out = isinstance(name, Move) and name.kind == StepKind.OFFLOAD
                is_early |= is_out and not late[number] and self._makes_early(number, name)
                (early if is_early else late)[number].append(name)
        whole: list[Name] = []
        for part, names in zip(self._parts, early, strict=True):
            whole += [*names, part.prefix + LEAVE]
        for part, names in reversed(list(zip(self._parts, late, strict=True))):
            if part.run.num_fwd_outputs is not None:
                whole += [part.prefix + BOUNDARY, *names]
                whole += [part.prefix + DONE] if part.added else []
        peak = self.peak_of(whole)
        if peak is None:
            return None
        orders = []
        for part, before, after in zip(self._parts, early, late, strict=True):
            turn = [BOUNDARY] if part.run.num_fwd_outputs is not None else []
            own = partial(self._own_step, len(part.prefix))
            orders.append([*map(own, before), *turn, *map(own, after)])
        return Orders(orders, peak, self._extra_cost(whole), whole)

    def _makes_early(self, number: int, move: Name) -> bool:
        made = (spec.makes for spec in self._parts[number].early)
        return isinstance(move, Move) and any(move.what in names for names in made)

    def _own_step(self, prefix_chars: int, name: Name) -> str | Move:
        if isinstance(name, Move):
            return Move(name.kind, self._holders[name.what][1])
        return str(name)[prefix_chars:]

    def _extra_cost(self, order: Sequence[Name]) -> float:
        once = float(self.graph.op_cost.sum())
        steps = map(self._step, order)
        cost = sum(float(self.graph.op_cost[op]) for kind, op in steps if kind == StepKind.COMPUTE)
        return cost / once - 1 if once else 0.0


def _leave(part: Part) -> OpSpec:
    """Return the op that stands for the code after a forward."""
    run = part.run
    written = {name for node in mutated_inputs(run.module.graph) for name in part.reader.buffers[node]}
    # the program may look at what its forward has written as soon as that returns
    seen = {name for spec in part.early for name in spec.writes if name in part.reader.inputs}
    reads, writes = sorted((set(part.given) | seen) - written, key=str), sorted(written)
    has_kept = run.kept_bytes and run.num_fwd_outputs is not None
    kept: dict[Name, int] = {part.prefix + KEPT: run.kept_bytes} if has_kept else {}
    outside = max(run.outside_bytes - run.kept_bytes, 0)
    return OpSpec(part.prefix + LEAVE, reads, kept, 0.0, writes, outside, Effect.UNKNOWN)


def _released(run: GraphRun, reader: GraphReader) -> set[str]:
    """Return the buffers among a graph's outputs that the program no longer holds when the backward begins."""
    place = plain_outputs(run.module.graph)
    gone = {place[number] for number in run.released if number in place}
    outputs = list(leaves(run.module.graph.output_node().args))
    held = _buffers(reader, [node for number, node in enumerate(outputs) if number not in gone])
    return set(_buffers(reader, [outputs[number] for number in gone])) - set(held)


def _buffers(reader: GraphReader, nodes: Sequence[Value]) -> list[str]:
    found = (name for node in nodes if isinstance(node, fx.Node) for name in reader.buffers[node])
    return list(dict.fromkeys(found))


def order_of_torch(parts: Sequence[Part], graph: Graph, *, as_torch: bool) -> list[Name]:
    """Return the order; it may be one that is not valid.

    Args:
        parts: the graphs of the step.
        graph: its program.
        as_torch: whether to compute again where torch does, rather than right before the use.
    """
    writer = _OrderWriter(parts, graph)
    for part in parts:
        writer.forward(part)
    for part in reversed(parts):
        if part.run.num_fwd_outputs is not None:
            writer.backward(part, as_torch=as_torch)
    return writer.order


class _OrderWriter:
    """Writes the order op by op, and knows which buffers are there."""

    def __init__(self, parts: Sequence[Part], graph: Graph) -> None:
        self.order: list[Name] = []
        self._ran: set[Name] = set()
        self._early = {spec.name: spec for part in parts for spec in part.early}
        self._late = {spec.name: spec for part in parts for spec in part.late}
        self._maker = {
            name: spec for part in parts for spec in (*part.early, *part.late) for name in spec.makes
        }
        self._there: set[Name] = {
            name for part in parts for name in (*part.reader.inputs, *part.reader.tangents)
        }
        self._there.update(name for spec in self._early.values() for name in spec.writes)
        self._again = {name for name, may in zip(graph.op_names, graph.op_recomputable, strict=True) if may}

    def forward(self, part: Part) -> None:
        """Write a forward; what it does not keep is gone after it."""
        self.order += [spec.name for spec in part.early]
        self.order.append(part.prefix + LEAVE)
        for node, names in part.reader.buffers.items():
            if node.name in part.run.saved:
                self._there.update(names)

    def backward(self, part: Part, *, as_torch: bool) -> None:
        """Write a backward, with what is computed again in it."""
        self.order.append(part.prefix + BOUNDARY)
        for name in part.run.torch_backward_nodes if as_torch else ():
            spec = self._late.get(part.prefix + name) or self._early.get(part.prefix + name)
            if spec is not None:
                for made in spec.makes:
                    self._need(made)
        for spec in part.late:
            self._run(spec)
        if part.added:
            self.order.append(part.prefix + DONE)

    def _need(self, name: Name) -> None:
        spec = self._maker.get(name)
        if name in self._there or spec is None:
            return
        if spec.name in self._late or spec.name in self._again:
            self._run(spec)

    def _run(self, spec: OpSpec) -> None:
        if spec.name in self._ran:
            return
        if spec.name in self._late:
            self._ran.add(spec.name)
        for read in (*spec.reads, *spec.writes):
            self._need(read)
        self.order.append(spec.name)
        self._there.update(spec.makes)
