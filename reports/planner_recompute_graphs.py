"""Programs whose best recompute plans are known, or that look like training steps; used by tests and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memwatch.planner import Graph

if TYPE_CHECKING:
    import random

MIB = 2**20


def linear_graph(length: int, nbytes: int = 1) -> Graph:
    """Checkmate's ``gen_linear_graph``: node i reads i - 1, node 2L - i reads node i as well."""
    ops = []
    for node in range(2 * length + 1):
        reads = [node - 1] if node else []
        mirrored = 2 * length - node
        if mirrored < length and mirrored != node - 1:
            reads.append(mirrored)
        ops.append((node, reads, {node: nbytes}, 1.0))
    return Graph.build(ops, keep=[2 * length])


def adversary_chains(count: int, length: int) -> Graph:
    """DTR's adversary (Theorem 3.2): parallel chains from one parent, their ops interleaved."""
    ops: list[tuple[str, list[str], dict[str, int], float]] = [("root", [], {"root": 1}, 1.0)]
    for depth in range(length):
        for chain in range(count):
            before = f"c{chain}.{depth - 1}" if depth else "root"
            ops.append((f"c{chain}.{depth}", [before], {f"c{chain}.{depth}": 1}, 1.0))
    return Graph.build(ops)


def unet_step(levels: int, rng: random.Random) -> Graph:
    """Forward and backward of a U-Net with skips, random sizes and costs."""
    ops: list[tuple[str, list[str], dict[str, int], float]] = []

    def op(name: str, *reads: str) -> None:
        ops.append((name, list(reads), {name: rng.randint(1, 20)}, float(rng.randint(1, 20))))

    op("x0")
    forward: list[tuple[str, tuple[str, ...]]] = []
    for level in range(levels):
        forward.append((f"e{level}", (f"x{level}",)))
        forward.append((f"x{level + 1}", (f"e{level}",)))
    here = f"x{levels}"
    for level in reversed(range(levels)):
        forward.append((f"u{level}", (here,)))
        forward.append((f"d{level}", (f"u{level}", f"e{level}")))
        here = f"d{level}"
    for name, reads in forward:
        op(name, *reads)
    op("loss", here)
    grads: dict[str, list[str]] = {here: ["loss"]}
    for name, reads in reversed(forward):
        incoming = grads[name]
        if len(incoming) > 1:
            op(f"sum.{name}", *incoming)
            incoming = [f"sum.{name}"]
        for read in reads:
            op(f"g.{name}.{read}", *incoming, name, *reads)
            grads.setdefault(read, []).append(f"g.{name}.{read}")
    return Graph.build(ops, keep=grads["x0"])


def layered_graph(layers: int, width: int, rng: random.Random) -> Graph:
    """Random layered DAG: every op reads one to three results of the last layers."""
    ops: list[tuple[int, list[int], dict[int, int], float]] = []
    for layer in range(layers):
        for _ in range(width):
            name = len(ops)
            pool = range(max(0, (layer - 2) * width), layer * width)
            reads = rng.sample(pool, min(len(pool), rng.randint(1, 3))) if layer else []
            ops.append((name, sorted(reads), {name: rng.randint(1, 50)}, float(rng.randint(1, 20))))
    return Graph.build(ops)


def training_chain(length: int, rng: random.Random, branches: float = 0.3) -> Graph:
    """Forward and backward of a chain of ops with random sizes, costs and residual connections."""
    ops: list[tuple[str, list[str], dict[str, int], float]] = []
    forward: list[tuple[str, list[str]]] = []
    for step in range(length):
        reads = [f"f{step - 1}"] if step else ["input"]
        if step > 2 and rng.random() < branches:
            reads.append(f"f{step - rng.randint(2, 3)}")
        forward.append((f"f{step}", reads))
        ops.append((f"f{step}", reads, {f"f{step}": rng.randint(1, 20)}, float(rng.randint(1, 20))))
    grads: dict[str, list[str]] = {f"f{length - 1}": ["loss"]}
    ops.append(("loss", [f"f{length - 1}"], {"loss": 1}, 1.0))
    weights = []
    for name, reads in reversed(forward):
        incoming = grads[name]
        if len(incoming) > 1:
            ops.append((f"sum.{name}", incoming, {f"sum.{name}": rng.randint(1, 20)}, 1.0))
            incoming = [f"sum.{name}"]
        cost = float(rng.randint(1, 20))
        weights.append(f"w.{name}")
        ops.append((f"w.{name}", [*incoming, *reads], {f"w.{name}": 1}, cost))
        for read in reads:
            if read != "input":
                ops.append(
                    (f"g.{name}.{read}", [*incoming, name], {f"g.{name}.{read}": rng.randint(1, 20)}, cost)
                )
                grads.setdefault(read, []).append(f"g.{name}.{read}")
    return Graph.build(ops, keep=weights)


def uniform_chain(length: int) -> Graph:
    """Return a uniform chain and its reversal; the last forward step is done inside its reversal (Revolve)."""
    ops: list[tuple[str, list[str], dict[str, int], float]] = [("x0", [], {"x0": 1}, 0.0)]
    ops += [(f"x{state}", [f"x{state - 1}"], {f"x{state}": 1}, 1.0) for state in range(1, length)]
    for step in reversed(range(length)):
        reads = [f"x{step}"] + ([f"g{step + 1}"] if step + 1 < length else [])
        ops.append((f"g{step}", reads, {f"g{step}": 1}, 0.0))
    return Graph.build(ops, keep=["g0"])
