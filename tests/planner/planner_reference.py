"""A second simulator and a brute force, written from the rules alone: they share no code with the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.planner import Effect, StepKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memwatch.planner import Graph, Step


class InvalidError(Exception):
    """The schedule does not compute the same as the program."""


class Program:
    """The program as plain dicts of names, read back from a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nbytes = graph.buffer_nbytes.tolist()
        self.external = [producer < 0 for producer in graph.buffer_producer.tolist()]
        version = dict.fromkeys(range(graph.num_buffers), 0)
        self.makes, self.reads, self.writes = [], [], []
        for op in range(graph.num_ops):
            self.makes.append(graph.makes.row(op).tolist())
            self.reads.append({b: version[b] for b in graph.reads.row(op).tolist()})
            self.writes.append({})
            for b in graph.writes.row(op).tolist():
                self.writes[op][b] = version[b]
                version[b] += 1
        self.final = {
            b: version[b]
            for b in range(graph.num_buffers)
            if graph.buffer_pinned[b] or (self.external[b] and not graph.buffer_freeable[b])
        }


def reference_peak(graph: Graph, steps: Iterable[Step]) -> int:
    """Peak of a schedule (bytes); raises InvalidError."""
    program, steps = Program(graph), list(steps)
    _check_effects(graph, [step.target for step in steps if step.kind == StepKind.COMPUTE])
    present = {b: 0 for b in range(graph.num_buffers) if program.external[b]}
    on_host: dict[int, int] = {}
    live = sum(program.nbytes[b] for b in present)
    peak = live
    for now, step in enumerate(steps):
        brought = _brought(program, step, present, on_host)
        extra = int(graph.op_workspace_bytes[step.target]) if step.kind == StepKind.COMPUTE else 0
        # a new copy replaces the old one, or is dropped when the next use wants the old one
        dropped = []
        for b, version in brought.items():
            if b in present and _next_wanted(program, steps, now + 1, b) != version:
                dropped.append(b)
                live += program.nbytes[b]
                continue
            assert b not in present, "the old copy should have been freed after its last use"
            present[b] = version
            live += program.nbytes[b]
        if step.kind == StepKind.COMPUTE:
            for b, version in program.writes[step.target].items():
                present[b] = version + 1
        peak = max(peak, live + extra)
        live -= sum(program.nbytes[b] for b in dropped)
        for b in [b for b in present if not _is_used(program, steps, now + 1, b, present[b])]:
            del present[b]
            live -= program.nbytes[b]
    for b, version in program.final.items():
        if present.get(b) != version:
            raise InvalidError(f"buffer {b} is not there at the end")
    return peak


def _brought(
    program: Program, step: Step, present: dict[int, int], on_host: dict[int, int]
) -> dict[int, int]:
    """Return the versions that a step brings, after a check that its inputs are present."""
    if step.kind == StepKind.COMPUTE:
        for b, version in {**program.reads[step.target], **program.writes[step.target]}.items():
            if present.get(b) != version:
                raise InvalidError(f"{step}: buffer {b}")
        return dict.fromkeys(program.makes[step.target], 0)
    source = present if step.kind == StepKind.OFFLOAD else on_host
    if step.target not in source:
        raise InvalidError(f"{step}: nothing to move")
    if step.kind == StepKind.OFFLOAD:
        on_host[step.target] = present[step.target]
        return {}
    return {step.target: on_host[step.target]}


def _check_effects(graph: Graph, ops: list[int]) -> None:
    if set(ops) != set(range(graph.num_ops)):
        raise InvalidError("ops are missing")
    for op in set(ops):
        if ops.count(op) > 1 and not graph.op_recomputable[op]:
            raise InvalidError(f"op {op} runs twice")
    first = list(dict.fromkeys(ops))
    for kinds in ((Effect.RNG, Effect.UNKNOWN), (Effect.COLLECTIVE, Effect.ITEM, Effect.UNKNOWN)):
        chain = [op for op in first if Effect(int(graph.op_effect[op])) in kinds]
        if chain != sorted(chain):
            raise InvalidError("effects out of order")


def _next_wanted(program: Program, steps: list[Step], start: int, b: int) -> int | None:
    """Version that the next use wants, apart from moves and makes; None: it is not used again."""
    for step in steps[start:]:
        if step.kind == StepKind.COMPUTE:
            wanted = {**program.reads[step.target], **program.writes[step.target]}
            if b in wanted:
                return wanted[b]
    return program.final.get(b)


def _is_used(program: Program, steps: list[Step], start: int, b: int, version: int) -> bool:
    """Whether this copy of b has a use before it is replaced."""
    for now in range(start, len(steps)):
        step = steps[now]
        if step.kind == StepKind.COMPUTE:
            if b in program.reads[step.target] or b in program.writes[step.target]:
                return True
            if b in program.makes[step.target] and _next_wanted(program, steps, now + 1, b) == 0:
                return False
        elif step.target == b:
            if step.kind == StepKind.OFFLOAD:
                return True
            host = _host_version(program, steps, now, b)
            if _next_wanted(program, steps, now + 1, b) == host:
                return False
    return b in program.final


def _host_version(program: Program, steps: list[Step], stop: int, b: int) -> int | None:
    """Version of b that the last offload before `stop` copied out."""
    version, host = 0, None
    for now, step in enumerate(steps[:stop]):
        if step.kind == StepKind.COMPUTE:
            # a copy that the next use does not want is dropped at once, and the one before stays
            if b in program.makes[step.target] and _next_wanted(program, steps, now + 1, b) == 0:
                version = 0
            if b in program.writes[step.target]:
                version = program.writes[step.target][b] + 1
        elif step.target == b and step.kind == StepKind.OFFLOAD:
            host = version
        elif step.target == b:
            version = host
    return host


def brute_force_peak(graph: Graph) -> int:
    """Lowest peak over all orders (bytes): every set of ops that can have run, by the accounting rule."""
    program = Program(graph)
    made = [sum(program.nbytes[b] for b in makes) for makes in program.makes]
    before = [sum(1 << above for above in graph.preds.row(op).tolist()) for op in range(graph.num_ops)]
    users = dict.fromkeys(range(graph.num_buffers), 0)
    for op in range(graph.num_ops):
        for b in {*program.makes[op], *program.reads[op], *program.writes[op]}:
            users[b] |= 1 << op

    def live(ran: int) -> int:
        return sum(
            size
            for b, size in enumerate(program.nbytes)
            if (program.external[b] or ran >> int(graph.buffer_producer[b]) & 1)
            and (b in program.final or users[b] & ~ran)
        )

    reached = {0: live(0)}
    for _ in range(graph.num_ops):
        larger: dict[int, int] = {}
        for ran, peak in reached.items():
            at_rest = live(ran)
            for op in range(graph.num_ops):
                if not ran >> op & 1 and before[op] & ran == before[op]:
                    top = max(peak, at_rest + made[op] + int(graph.op_workspace_bytes[op]))
                    larger[ran | 1 << op] = min(top, larger.get(ran | 1 << op, top))
        reached = larger
    return max(reached[(1 << graph.num_ops) - 1], live((1 << graph.num_ops) - 1))
