"""Programs with known optima, and random families: what the planner's tests and reports measure itself on."""

from __future__ import annotations

import random

from memwatch.planner import Graph, OpSpec

KIB, MIB = 2**10, 2**20


def thunder_1337(paths: int, relus_first: bool = False) -> Graph:
    """Lightning-AI/lightning-thunder#1337: per input t0 relu, t1 @ t1, relu, a = t3 @ a; 256x256 float32.

    Args:
        paths: number of inputs.
        relus_first: the inefficient function of the issue, which runs all first relus before the rest.
    """
    size = 256 * 256 * 4
    ops = []
    for path in range(paths):
        accumulator = f"a{path - 1}" if path else "a"
        ops += [
            (f"relu{path}", [f"in{path}"], {f"t1_{path}": size}, 1),
            (f"square{path}", [f"t1_{path}"], {f"t2_{path}": size}, 1),
            (f"relu_again{path}", [f"t2_{path}"], {f"t3_{path}": size}, 1),
            (f"mm{path}", [f"t3_{path}", accumulator], {f"a{path}": size}, 1),
        ]
    if relus_first:
        ops = ops[::4] + [op for position, op in enumerate(ops) if position % 4]
    return Graph.build(ops, keep=[f"a{paths - 1}"])


def inductor_foo(rows: int = 2048) -> Graph:
    """Build `Foo` of torch's test_memory.py: two branches of matmuls, one wide, one narrow, both summed."""
    wide, narrow = rows * 10 * 4, rows * 4
    return Graph.build(
        [
            ("t1_op", ["x", "w1"], {"t1": wide}, 1),
            ("t2_op", ["x", "w2"], {"t2": narrow}, 1),
            ("t3_op", ["t1", "w3"], {"t3": narrow}, 1),
            ("t4_op", ["t2", "w4"], {"t4": wide}, 1),
            ("sum3", ["t3"], {"s3": 4}, 1),
            ("sum4", ["t4"], {"s4": 4}, 1),
        ],
        keep=["s3", "s4"],
    )


def inductor_reductions(large: int = MIB, small: int = KIB) -> Graph:
    """(a @ c).sum(-1) + (b @ c).sum(-1), both products first."""
    return Graph.build(
        [
            ("ac_op", ["a", "c"], {"ac": large}, 1),
            ("bc_op", ["b", "c"], {"bc": large}, 1),
            ("sum_ac", ["ac"], {"sa": small}, 1),
            ("sum_bc", ["bc"], {"sb": small}, 1),
            ("add", ["sa", "sb"], {"out": small}, 1),
        ],
        keep=["out"],
    )


def inductor_mutation(size: int = 2048, times: int = 4) -> Graph:
    """Inductor's mutation test: e is converted in place, p = p @ e, several times."""
    ops: list[OpSpec] = []
    before = "p"
    for turn in range(times):
        ops.append(OpSpec(f"to_bf16_{turn}", reads=["e_source"], writes=["e"]))
        ops.append(OpSpec(f"mm_{turn}", reads=[before, "e"], makes={f"p{turn}": size}))
        before = f"p{turn}"
    return Graph.build([OpSpec("alloc_e", makes={"e": size}), *ops], keep=[before])


def binary_tree(height: int) -> Graph:
    """Complete in-tree of unit buffers, listed level by level: 2^h leaves are free to run."""
    ops = []
    for level in range(height, -1, -1):
        for index in range(2**level):
            reads = [f"{level + 1}_{2 * index}", f"{level + 1}_{2 * index + 1}"] if level < height else []
            ops.append((f"op{level}_{index}", reads, {f"{level}_{index}": 1}, 1))
    return Graph.build(ops)


def random_in_tree(num_ops: int, seed: int, largest: int = 9) -> Graph:
    """In-tree with random sizes; every op but the root is read by one later op."""
    draw = random.Random(seed)
    reads: list[list[str]] = [[] for _ in range(num_ops)]
    for op in range(num_ops - 1):
        reads[draw.randrange(op + 1, num_ops)].append(f"b{op}")
    return Graph.build([(op, reads[op], {f"b{op}": draw.randint(0, largest)}, 1) for op in range(num_ops)])


def random_out_tree(num_ops: int, seed: int, largest: int = 9) -> Graph:
    """Out-tree with random sizes; an op makes one buffer for every op that follows it."""
    draw = random.Random(seed)
    makes: list[dict[str, int]] = [{} for _ in range(num_ops)]
    reads: list[list[str]] = [[] for _ in range(num_ops)]
    for op in range(1, num_ops):
        makes[draw.randrange(op)][f"b{op}"] = draw.randint(0, largest)
        reads[op].append(f"b{op}")
    return Graph.build([(op, reads[op], makes[op], 1) for op in range(num_ops)])


def pyramid(base: int) -> Graph:
    """Rows of base, base - 1, ... 1 unit buffers; each reads the two below it (pebbling number base + 1)."""
    return Graph.build(
        [
            (f"op{row}_{i}", [f"{row - 1}_{i}", f"{row - 1}_{i + 1}"] if row else [], {f"{row}_{i}": 1}, 1)
            for row in range(base)
            for i in range(base - row)
        ]
    )


def grid(rows: int, columns: int) -> Graph:
    """Cells of unit buffers; each reads the cell above and the cell to the left."""
    ops = []
    for i in range(rows):
        for j in range(columns):
            reads = [f"{i - 1}_{j}"] * (i > 0) + [f"{i}_{j - 1}"] * (j > 0)
            ops.append((f"op{i}_{j}", reads, {f"{i}_{j}": 1}, 1))
    return Graph.build(ops)


def butterfly(stages: int) -> Graph:
    """FFT on 2^stages points; the inputs are ops, the outputs are kept."""
    points = 2**stages
    ops = [(f"op0_{i}", [], {f"0_{i}": 1}, 1) for i in range(points)]
    for stage in range(1, stages + 1):
        for i in range(points):
            partner = i ^ (1 << (stage - 1))
            reads = [f"{stage - 1}_{i}", f"{stage - 1}_{partner}"]
            ops.append((f"op{stage}_{i}", reads, {f"{stage}_{i}": 1}, 1))
    return Graph.build(ops, keep=[f"{stages}_{i}" for i in range(points)])


def fork_join(branches: int) -> Graph:
    """A source, branches of one op of size 8 and two of size 1, a join; listed stage by stage."""
    ops: list[tuple] = [("source", [], {"s": 1}, 1)]
    ops += [(f"big{i}", ["s"], {f"x{i}": 8}, 1) for i in range(branches)]
    ops += [(f"mid{i}", [f"x{i}"], {f"y{i}": 1}, 1) for i in range(branches)]
    ops += [(f"end{i}", [f"y{i}"], {f"z{i}": 1}, 1) for i in range(branches)]
    ops.append(("join", [f"z{i}" for i in range(branches)], {"out": 1}, 1))
    return Graph.build(ops)


def unet_inference(levels: int) -> Graph:
    """U-Net, factor 4 per level: encoder, down, up, decoder with skip."""
    ops: list[tuple] = []
    below = "image"
    for level in range(levels):
        size = 4 ** (levels - level)
        ops.append((f"enc{level}", [below], {f"e{level}": size}, 1))
        ops.append((f"down{level}", [f"e{level}"], {f"d{level}": size // 4}, 1))
        below = f"d{level}"
    ops.append(("bottom", [below], {"m": 1}, 1))
    below = "m"
    for level in reversed(range(levels)):
        size = 4 ** (levels - level)
        ops.append((f"up{level}", [below], {f"u{level}": size}, 1))
        ops.append((f"dec{level}", [f"u{level}", f"e{level}"], {f"o{level}": size}, 1))
        below = f"o{level}"
    return Graph.build(ops, keep=[below])


def dtr_adversary(chains: int, length: int) -> Graph:
    """Parallel chains from one parent, ops interleaved across chains (DTR, theorem 3.2)."""
    ops: list[tuple] = [("parent", [], {"p": 1}, 1)]
    for step in range(length):
        for chain in range(chains):
            before = f"c{chain}_{step - 1}" if step else "p"
            ops.append((f"op{chain}_{step}", [before], {f"c{chain}_{step}": 1}, 1))
    return Graph.build(ops)


def random_layered(num_ops: int, width: int, seed: int, fan_in: int = 3, largest: int = 100) -> Graph:
    """Layers of `width` ops; each reads up to `fan_in` buffers of the two layers before."""
    draw = random.Random(seed)
    ops = []
    for op in range(num_ops):
        layer = op // width
        pool = range(max(0, layer - 2) * width, layer * width)
        reads = sorted(draw.sample(pool, min(fan_in, len(pool))))
        ops.append((f"op{op}", [f"b{r}" for r in reads], {f"b{op}": draw.randint(1, largest)}, 1))
    return Graph.build(ops)


def random_series_parallel(num_ops: int, seed: int, largest: int = 100) -> Graph:
    """Nested sequences and forks with joins; a fork's buffer is shared by its branches."""
    draw = random.Random(seed)
    reads: list[list[int]] = []

    def add(*inputs: int) -> int:
        reads.append(list(inputs))
        return len(reads) - 1

    def block(size: int, entry: int) -> int:
        if size <= 1:
            return add(entry)
        if size < 5 or draw.random() < 0.4:
            first = draw.randint(1, size - 1)
            return block(size - first, block(first, entry))
        fork = add(entry)
        branches = draw.randint(2, min(4, size - 2))
        cuts = sorted(draw.sample(range(1, size - 2), branches - 1))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, size - 2], strict=True)]
        return add(*(block(part, fork) for part in sizes))

    block(num_ops - 1, add())
    ops = [
        (f"op{op}", [f"b{r}" for r in ins], {f"b{op}": draw.randint(1, largest)}, 1)
        for op, ins in enumerate(reads)
    ]
    return Graph.build(ops)


def random_training(num_ops: int, seed: int, largest: int = 100) -> Graph:
    """Forward layers with skips, backward with weight gradients, all optimizer updates at the end."""
    draw = random.Random(seed)
    layers = num_ops // 4
    inputs = [[f"a{i - 1}"] if i else ["x"] for i in range(layers)]
    for i in range(2, layers):
        if draw.random() < 0.3:
            inputs[i].append(f"a{draw.randrange(i - 1)}")
    size = [draw.randint(1, largest) for _ in range(layers)]
    ops = [OpSpec(f"fwd{i}", [*inputs[i], f"p{i}"], {f"a{i}": size[i]}) for i in range(layers)]
    for i in reversed(range(layers)):
        above = [f"d{j}" for j in range(i + 1, layers) if f"a{i}" in inputs[j]]
        ops.append(OpSpec(f"dgrad{i}", [*above, f"a{i}", f"p{i}"], {f"d{i}": size[i]}))
        ops.append(OpSpec(f"wgrad{i}", [f"d{i}", *inputs[i]], {f"w{i}": draw.randint(1, largest)}))
    ops += [OpSpec(f"update{i}", [f"w{i}"], writes=[f"p{i}"]) for i in range(layers)]
    return Graph.build(ops)
