"""Describe a step as one program for the planner, and plan it within a budget.

`StepModel` is the step: the forwards of all graphs of a compiled callable, then their backwards in reverse order.
`plan_step` returns an order for each graph. Their peak is never above the peak of torch's own partition.

The tensors that the first graphs save for their backward are alive while the later graphs run, so all graphs share one
budget. At a graph break one graph passes its output to the next graph. The program has one buffer for both. torch
runs each graph by itself, so `StepModel.cut` cuts the planned order into one order per graph.

`order_of_torch` returns the step's order under torch's own partition. The partition lists the tensors that each forward
saves. The backward recomputes the others, either right before their use, or at the place where torch's backward
recomputes them.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from memwatch._torch.dispatch import OpOverload, base_name_of
from memwatch._torch.traced_graphs import size_at
from memwatch.encoding import Value, leaves
from memwatch.planner import (
    BudgetError,
    Effect,
    Graph,
    OpSpec,
    OrderError,
    Plan,
    Schedule,
    Step,
    StepKind,
    plan_graph,
    simulate,
)
from memwatch.planner.graph import fingerprint
from memwatch.planner.request import op_text
from memwatch.replay.fx import (
    BOUNDARY,
    GraphReader,
    first_backward_node,
    is_op,
    is_tangent,
    mutated_inputs,
    plain_outputs,
    traced_size,
)
from memwatch.replay.measure import Workspaces
from memwatch.replay.rewrite import Move
from memwatch.words.places import place_in_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memwatch.planner.graph import Name
    from memwatch.replay.options import BackendOptions


LEAVE: Final = "your code after the forward"
"""Name of the op that represents this code. It reads the forward's outputs."""
KEPT: Final = "tensors that your code after the forward keeps"
"""Name of the buffer that represents these tensors."""
DONE: Final = "your code after the backward"
"""Name of the op that represents this code. It adds up gradients."""


@dataclass(frozen=True, eq=False)
class GraphRun:
    """One run of a graph in a step.

    Attributes:
        module: the joint graph of forward and backward, or a graph without backward.
        num_fwd_outputs: how many outputs belong to the forward; None without backward.
        saved: names of the nodes that torch's own partition saves for the backward.
        torch_backward_nodes: names of the nodes that the backward of this partition runs, in order.
        values: symbol of a dynamic size -> its value.
        inputs: addresses of the storages of its arguments; empty if unknown.
        outputs: addresses of the storages of its results; empty if unknown.
        released: indices of the outputs that the program had dropped before the backward in a measured step.
        outside_bytes: the most bytes that the code after its forward allocated.
        kept_bytes: the part of these bytes that was alive when the next forward began.
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
        """Return a size, which may be symbolic, as a number."""
        if isinstance(size, int):
            return size
        found = size_at(size, self.values) if self.values else None
        return traced_size(size) if found is None else found


@dataclass
class Part:
    """The ops and buffers that one graph adds to the program.

    Attributes:
        run: the graph.
        reader: its nodes as ops and buffers.
        prefix: the prefix of the names of its ops.
        forward_ops: ops of its forward.
        backward_ops: ops of its backward.
        outputs: buffers that the forward returns to the program.
        released: outputs that the program drops before the backward begins.
        passed_on: outputs that are arguments of a later graph.
        added_gradients: gradients that are added to gradients of an earlier backward.
    """

    run: GraphRun
    reader: GraphReader
    prefix: str
    forward_ops: list[OpSpec]
    backward_ops: list[OpSpec]
    outputs: list[str]
    released: set[str]
    passed_on: set[str] = field(default_factory=set)
    added_gradients: set[str] = field(default_factory=set)


def _movable_buffers(part: Part) -> dict[Name, str]:
    """Return the buffers of a graph that can be moved out and back, each with the name of the node that makes it.

    Outputs cannot be moved, because the program or another graph refers to them. A buffer that an op writes cannot be
    moved either, because the copy would be out of date.
    """
    ops = (*part.forward_ops, *part.backward_ops)
    fixed = {
        *part.outputs,
        *part.reader.keep,
        *part.passed_on,
        *(name for spec in ops for name in spec.writes),
    }
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
    """The orders of a plan: the order of the whole step, and the order of each graph.

    Attributes:
        of_graphs: for each graph the names of its nodes in order, with `BOUNDARY` between forward and backward. A
            `Move` in an order names the node whose value is moved.
        whole: the order of the step.
        peak_increase_bytes: the peak of the step in this order.
        extra_cost_ratio: cost of recomputed ops, as a share of the step's cost.
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
        # address of a storage -> name of its buffer, to find the storages that graphs share
        self._produced: dict[int, str] = {}
        self._external: dict[int, str] = {}
        for number, run in enumerate(runs):
            self._parts.append(self._read(run, f"graph {number + 1}: " if number else ""))
        self._owner = {
            spec.name: number
            for number, part in enumerate(self._parts)
            for spec in (*part.forward_ops, *part.backward_ops)
        }
        self.graph = self._build()
        self._movable_nodes = {
            name: (number, node)
            for number, part in enumerate(self._parts)
            for name, node in _movable_buffers(part).items()
        }
        self.movable = frozenset(self._movable_nodes)

    def text_of(self, name: Name) -> str:
        """Return a name of an op for messages: its overload and the line of the program that called its forward."""
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
        of = "the backward of " if any(spec.name == name for spec in part.backward_ops) else ""
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
        crossing = None if run.num_fwd_outputs is None else first_backward_node(run.module.graph)
        outputs = list(leaves(run.module.graph.output_node().args))[: run.num_fwd_outputs]
        num_forward = None
        for node in run.module.graph.nodes:
            if node is crossing:
                num_forward = len(reader.ops)
            reader.read(node)
        early, late = reader.ops[:num_forward], [] if num_forward is None else reader.ops[num_forward:]
        part = Part(run, reader, prefix, early, late, _buffers(reader, outputs), _released(run, reader))
        for node, address in addresses.items():
            if reader.buffers[node] and address not in self._produced:
                self._external.setdefault(address, reader.buffers[node][0])
        self._connect(part, outputs, primals)
        return part

    def _connect(self, part: Part, outputs: list[Value], primals: list[fx.Node]) -> None:
        """Record the outputs of a graph by address, and mark outputs of earlier graphs that this graph takes."""
        for node, address in zip(outputs, part.run.outputs, strict=False):
            if isinstance(node, fx.Node) and part.reader.buffers[node] and address:
                self._produced[address] = part.reader.buffers[node][0]
        own = {name for spec in (*part.forward_ops, *part.backward_ops) for name in spec.makes}
        taken = {part.reader.given[node] for node in primals if node in part.reader.given} - own
        for earlier in self._parts:
            earlier.passed_on |= taken.intersection(earlier.outputs)

    def _gradients(self, part: Part) -> list[tuple[str, str]]:
        """Return pairs (name of an input, name of its gradient), where they are known."""
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
            # the program or another graph keeps these buffers alive, so computing them again would free nothing
            stays = part.passed_on | (set(part.outputs) - part.released)
            part.forward_ops = [
                dataclasses.replace(spec, recomputable=False) if spec.makes.keys() & stays else spec
                for spec in part.forward_ops
            ]
            ops += part.forward_ops
            ops.append(_program_op(part))
            passing = part.passed_on | part.released
            keep.update((name, None) for name in part.reader.keep if name not in passing)
        arriving: dict[str, list[str]] = {}
        has_gradient: set[str] = set()
        for part in reversed(self._parts):
            if part.run.num_fwd_outputs is None:
                continue
            for source, gradient in self._gradients(part):
                if source in has_gradient:
                    part.added_gradients.add(gradient)
                    keep.pop(gradient, None)
                elif any(source in other.passed_on for other in self._parts):
                    arriving.setdefault(source, []).append(gradient)
                    keep.pop(gradient, None)
                else:
                    has_gradient.add(source)
            # the code before this backward reads the gradients that later graphs computed for its outputs
            read = [name for output in part.passed_on for name in arriving.get(output, [])]
            read += [part.prefix + KEPT] if part.run.kept_bytes else []
            tangents: dict[Name, int] = dict(part.reader.tangents)
            ops.append(OpSpec(part.prefix + BOUNDARY, read, tangents, 0.0, effect=Effect.UNKNOWN))
            ops += part.backward_ops
            if part.added_gradients:
                ops.append(
                    OpSpec(part.prefix + DONE, sorted(part.added_gradients), effect=Effect.UNKNOWN, cost=0.0)
                )
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
        """Return the step's order under torch's own partition; None if no such order is valid.

        Tensors that the partition does not save are recomputed. Two orders are tried: they are recomputed where torch's
        backward does it, or right before their use. The result is the order with the lower peak.
        """
        orders = [order_of_torch(self._parts, self.graph, as_torch=as_torch) for as_torch in (False, True)]
        peaks = [
            (peak, number) for number, order in enumerate(orders) if (peak := self.peak_of(order)) is not None
        ]
        return orders[min(peaks)[1]] if peaks else None

    def peak_of(self, order: Sequence[Name]) -> int | None:
        """Return the peak increase of a step in this order; None if the order is invalid."""
        schedule = Schedule.of(map(self._step, order))
        try:
            return simulate(self.graph, schedule).peak_bytes - self.graph.baseline_bytes
        except OrderError:
            return None

    def with_states(self, order: Sequence[Name], states: Sequence[Mapping[str, str]]) -> list[Name]:
        """Insert ops that save random states into an older order of the step.

        Args:
            order: the order.
            states: for each graph, name of a random op -> name of the op that saves the state before it.
        """
        before: dict[Name, Name] = {
            part.prefix + name: part.prefix + state
            for part, names in zip(self._parts, states, strict=True)
            for name, state in names.items()
        }
        return [each for name in order for each in (before.pop(name, None), name) if each is not None]

    def with_parts(self, order: Sequence[Name], parts: Sequence[Mapping[str, str]]) -> list[Name]:
        """Insert the second parts of ops that were split into an older order of the step.

        Args:
            order: the order.
            parts: for each graph, name of an op -> name of its second part.
        """
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
        """Cut a planned order of the step into one order per graph; return None if the result is invalid.

        An op can only run while its own graph runs. An op that is planned while another graph runs moves to the next
        place where its own graph runs.
        """
        early: list[list[Name]] = [[] for _ in self._parts]
        late: list[list[Name]] = [[] for _ in self._parts]
        left: set[int] = set()
        leave = {part.prefix + LEAVE: number for number, part in enumerate(self._parts)}
        for name in order:
            if name in leave:
                left.add(leave[name])
            elif name in self._owner or isinstance(name, Move):
                number = self._movable_nodes[name.what][0] if isinstance(name, Move) else self._owner[name]
                is_early = number not in left or self._parts[number].run.num_fwd_outputs is None
                # if the plan moves a buffer out while another graph runs, move it out before that graph runs
                is_out = isinstance(name, Move) and name.kind == StepKind.OFFLOAD
                is_early |= is_out and not late[number] and self._makes_early(number, name)
                (early if is_early else late)[number].append(name)
        whole: list[Name] = []
        for part, names in zip(self._parts, early, strict=True):
            whole += [*names, part.prefix + LEAVE]
        for part, names in reversed(list(zip(self._parts, late, strict=True))):
            if part.run.num_fwd_outputs is not None:
                whole += [part.prefix + BOUNDARY, *names]
                whole += [part.prefix + DONE] if part.added_gradients else []
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
        made = (spec.makes for spec in self._parts[number].forward_ops)
        return isinstance(move, Move) and any(move.what in names for names in made)

    def _own_step(self, prefix_chars: int, name: Name) -> str | Move:
        if isinstance(name, Move):
            return Move(name.kind, self._movable_nodes[name.what][1])
        return str(name)[prefix_chars:]

    def _extra_cost(self, order: Sequence[Name]) -> float:
        once = float(self.graph.op_cost.sum())
        steps = map(self._step, order)
        cost = sum(float(self.graph.op_cost[op]) for kind, op in steps if kind == StepKind.COMPUTE)
        return cost / once - 1 if once else 0.0


def _program_op(part: Part) -> OpSpec:
    """Return the op that represents the program's code after a forward."""
    run = part.run
    written = {name for node in mutated_inputs(run.module.graph) for name in part.reader.buffers[node]}
    # the program may read the inputs that its forward has written as soon as the forward returns
    seen = {name for spec in part.forward_ops for name in spec.writes if name in part.reader.inputs}
    reads = sorted((set(part.outputs) | seen) - written, key=str)
    writes = sorted(written)
    has_kept = run.kept_bytes and run.num_fwd_outputs is not None
    kept: dict[Name, int] = {part.prefix + KEPT: run.kept_bytes} if has_kept else {}
    outside = max(run.outside_bytes - run.kept_bytes, 0)
    return OpSpec(part.prefix + LEAVE, reads, kept, 0.0, writes, outside, Effect.UNKNOWN)


def _released(run: GraphRun, reader: GraphReader) -> set[str]:
    """Return the buffers of outputs that the program drops before the backward begins."""
    place = plain_outputs(run.module.graph)
    gone = {place[number] for number in run.released if number in place}
    outputs = list(leaves(run.module.graph.output_node().args))
    held = _buffers(reader, [node for number, node in enumerate(outputs) if number not in gone])
    return set(_buffers(reader, [outputs[number] for number in gone])) - set(held)


def _buffers(reader: GraphReader, nodes: Sequence[Value]) -> list[str]:
    found = (name for node in nodes if isinstance(node, fx.Node) for name in reader.buffers[node])
    return list(dict.fromkeys(found))


def order_of_torch(parts: Sequence[Part], graph: Graph, *, as_torch: bool) -> list[Name]:
    """Return a step's order under torch's own partition. It is not always valid.

    Args:
        parts: the graphs of the step.
        graph: its program.
        as_torch: whether to recompute where torch's backward does, instead of right before the use.
    """
    writer = _OrderWriter(parts, graph)
    for part in parts:
        writer.forward(part)
    for part in reversed(parts):
        if part.run.num_fwd_outputs is not None:
            writer.backward(part, as_torch=as_torch)
    return writer.order


class _OrderWriter:
    """Writes the order op by op, and tracks which buffers exist at this point."""

    def __init__(self, parts: Sequence[Part], graph: Graph) -> None:
        self.order: list[Name] = []
        self._ran: set[Name] = set()
        self._early = {spec.name: spec for part in parts for spec in part.forward_ops}
        self._late = {spec.name: spec for part in parts for spec in part.backward_ops}
        self._maker = {
            name: spec
            for part in parts
            for spec in (*part.forward_ops, *part.backward_ops)
            for name in spec.makes
        }
        self._existing: set[Name] = {
            name for part in parts for name in (*part.reader.inputs, *part.reader.tangents)
        }
        self._existing.update(name for spec in self._early.values() for name in spec.writes)
        self._recomputable = {
            name for name, may in zip(graph.op_names, graph.op_recomputable, strict=True) if may
        }

    def forward(self, part: Part) -> None:
        """Append the ops of a forward. Only the saved buffers exist for the backward afterwards."""
        self.order += [spec.name for spec in part.forward_ops]
        self.order.append(part.prefix + LEAVE)
        for node, names in part.reader.buffers.items():
            if node.name in part.run.saved:
                self._existing.update(names)

    def backward(self, part: Part, *, as_torch: bool) -> None:
        """Append the ops of a backward, with the recomputed ops."""
        self.order.append(part.prefix + BOUNDARY)
        for name in part.run.torch_backward_nodes if as_torch else ():
            spec = self._late.get(part.prefix + name) or self._early.get(part.prefix + name)
            if spec is not None:
                for made in spec.makes:
                    self._need(made)
        for spec in part.backward_ops:
            self._run(spec)
        if part.added_gradients:
            self.order.append(part.prefix + DONE)

    def _need(self, name: Name) -> None:
        spec = self._maker.get(name)
        if name in self._existing or spec is None:
            return
        if spec.name in self._late or spec.name in self._recomputable:
            self._run(spec)

    def _run(self, spec: OpSpec) -> None:
        if spec.name in self._ran:
            return
        if spec.name in self._late:
            self._ran.add(spec.name)
        for read in (*spec.reads, *spec.writes):
            self._need(read)
        self.order.append(spec.name)
        self._existing.update(spec.makes)


_MOST_TRIES: Final = 3
"""Plans per budget: cutting a plan into graphs adds some bytes, so the next try aims lower. A guess."""


@dataclass(frozen=True)
class PlannedStep:
    """The result of planning a step.

    Attributes:
        orders: the orders of the graphs.
        is_lowest: whether no orders fit the budget, and these are the lowest ones found.
        error: the error of the planner that says why no plan fits.
        uncut_bytes: the peak increase of the plan before it was cut into graphs.
    """

    orders: Orders
    is_lowest: bool = False
    error: BudgetError | None = None
    uncut_bytes: int = 0


def plan_step(
    model: StepModel,
    own: Sequence[Name] | None,
    wanted_bytes: int | None,
    options: BackendOptions,
    others: Sequence[Sequence[Name]] = (),
) -> PlannedStep:
    """Return orders within a budget, or the lowest ones found.

    Args:
        model: the step.
        own: the order of torch's own partition, if it is known. The plan's peak is never above its peak.
        wanted_bytes: the budget; None for the lowest peak that an order alone can reach.
        options: the user's options.
        others: other orders to begin with.
    """
    known = [own] if own is not None and options.recompute and options.order == "auto" else []
    own_peak = model.peak_of(known[0]) if known else None
    if wanted_bytes is None:
        found = _plan(model, None, [], options)
        if own_peak is None or found.orders.peak_increase_bytes <= own_peak:
            return found
        return _plan(model, own_peak, known, options)
    known += [order for order in others if known and not any(isinstance(name, Move) for name in order)]
    target = wanted_bytes if own_peak is None else min(wanted_bytes, own_peak)
    best: PlannedStep | None = None
    for _ in range(_MOST_TRIES):
        found = _plan(model, target, known, options)
        over = found.orders.peak_increase_bytes - wanted_bytes
        if over <= 0:
            return PlannedStep(found.orders)
        if best is None or found.orders.peak_increase_bytes < best.orders.peak_increase_bytes:
            best = found
        if found.is_lowest:
            break
        # Cutting the plan into graphs added `more` bytes. The next plan will need about as many, so aim lower.
        more = found.orders.peak_increase_bytes - found.uncut_bytes
        target = max(min(target - over, wanted_bytes - more), 0)
    assert best is not None, "something was planned"
    if options.offload:  # after the cut into graphs, a plan with moves can take more than a plan without them
        other = plan_step(model, own, wanted_bytes, dataclasses.replace(options, offload=False))
        if other.orders.peak_increase_bytes < best.orders.peak_increase_bytes:
            return other
    return PlannedStep(best.orders, is_lowest=True, error=best.error)


def _plan(
    model: StepModel, target: int | None, known: Sequence[Sequence[Name]], options: BackendOptions
) -> PlannedStep:
    error = None
    try:
        plan = plan_graph(
            model.graph,
            budget=target,
            order=options.order,
            recompute=options.recompute,
            offload=options.offload,
            movable=model.movable if options.offload else None,
            time_limit_s=options.time_limit_s,
            seed=options.seed,
            known=known,
            name_of=model.text_of,
        )
    except BudgetError as raised:
        if not isinstance(raised.best, Plan):
            raise
        plan = raised.best
        # the traceback would keep the variables of the program's frames alive
        error = raised.with_traceback(None)
    orders = model.cut(model.steps_of(plan)) or program_order(model)
    return PlannedStep(orders, is_lowest=error is not None, error=error, uncut_bytes=plan.peak_increase_bytes)


def program_order(model: StepModel) -> Orders:
    """Return the program's own order, which is always valid."""
    found = model.cut(model.graph.op_names)
    assert found is not None, "the program's own order is valid"
    return found


_MOST_GRAPHS: Final = 32
"""Number of graphs that `equal_graph` remembers, the latest ones. A guess."""
_graphs: Final[OrderedDict[tuple[str, bytes], Graph]] = OrderedDict()


def equal_graph(graph: Graph) -> Graph:
    """Return an equal graph from an earlier call, or else this one.

    The planner remembers the plans of a graph for other budgets, and finds them only by the same object.
    """
    key = fingerprint(graph), graph.op_workspace_bytes.tobytes()
    found = _graphs.setdefault(key, graph)
    _graphs.move_to_end(key)
    while len(_graphs) > _MOST_GRAPHS:
        _graphs.popitem(last=False)
    return found
