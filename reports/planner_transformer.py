"""One training step of a small transformer, op by op: bytes of every storage, FLOPs of every op."""

from __future__ import annotations

from dataclasses import dataclass, field

from memwatch.planner import Graph
from memwatch.planner.graph import OpSpec

FLOAT_BYTES = 4


@dataclass
class _Tape:
    """Ops in the order eager PyTorch runs them, and the sizes they share (elements)."""

    rows: int
    width: int
    head_width: int
    scores: int
    ops: list[OpSpec] = field(default_factory=list)
    keep: list[str] = field(default_factory=list)

    def op(self, name: str, reads: list[str], flops: float, **numel: int) -> str:
        """Append an op; outputs are named ``name`` or ``name.key``."""
        makes = {name if key == "out" else f"{name}.{key}": FLOAT_BYTES * n for key, n in numel.items()}
        self.ops.append(OpSpec(name, tuple(reads), makes, float(flops)))
        return name

    def gradient(self, name: str, reads: list[str], flops: float, numel: int) -> None:
        """Append an op whose output is a parameter's gradient, alive at the end."""
        self.keep.append(self.op(name, reads, flops, out=numel))


def transformer_step(
    *, layers: int = 4, width: int = 256, heads: int = 4, batch: int = 8, seq: int = 256, vocab: int = 512
) -> Graph:
    """Forward, loss and backward with explicit softmax(QK^T), pre-norm, GELU, as eager PyTorch saves it."""
    rows = batch * seq
    tape = _Tape(rows, width, width // heads, batch * heads * seq * seq)
    x = tape.op("embed", ["tokens"], rows * width, out=rows * width)
    blocks = []
    for layer in range(layers):
        x, saved = _forward(tape, f"l{layer}", x)
        blocks.append(saved)
    normed = _layer_norm(tape, "norm", x)
    logits = tape.op("head", [normed], 2 * rows * width * vocab, out=rows * vocab)
    log_probs = tape.op("log_softmax", [logits], 5 * rows * vocab, out=rows * vocab)
    tape.keep.append(tape.op("loss", [log_probs], rows, out=1))
    grad = tape.op("loss.grad", ["ones"], rows, out=rows * vocab)
    grad = tape.op("log_softmax.grad", [grad, log_probs], 3 * rows * vocab, out=rows * vocab)
    tape.gradient("head.weight.grad", [grad, normed], 2 * rows * width * vocab, width * vocab)
    grad = tape.op("head.grad", [grad], 2 * rows * width * vocab, out=rows * width)
    grad = _layer_norm_grad(tape, "norm", grad, x)
    for layer in reversed(range(layers)):
        grad = _backward(tape, f"l{layer}", grad, blocks[layer])
    tape.gradient("embed.weight.grad", [grad, "tokens"], rows * width, vocab * width)
    return Graph.build(tape.ops, keep=tape.keep)


def _layer_norm(tape: _Tape, name: str, x: str) -> str:
    rows, width = tape.rows, tape.width
    return tape.op(name, [x], 8 * rows * width, out=rows * width, mean=rows, rstd=rows)


def _layer_norm_grad(tape: _Tape, name: str, grad: str, x: str) -> str:
    rows, width = tape.rows, tape.width
    reads = [grad, x, f"{name}.mean", f"{name}.rstd"]
    out = tape.op(f"{name}.grad", reads, 12 * rows * width, out=rows * width, weight=width, bias=width)
    tape.keep += [f"{out}.weight", f"{out}.bias"]
    return out


def _linear_grad(tape: _Tape, name: str, grad: str, x: str, shape: tuple[int, int]) -> str:
    rows, (inner, outer) = tape.rows, shape
    flops = 2 * rows * inner * outer
    out = tape.op(f"{name}.grad", [grad], flops, out=rows * inner)
    tape.gradient(f"{name}.weight.grad", [grad, x], flops, inner * outer)
    tape.gradient(f"{name}.bias.grad", [grad], rows * outer, outer)
    return out


def _forward(tape: _Tape, at: str, x: str) -> tuple[str, dict[str, str]]:
    rows, width, scores = tape.rows, tape.width, tape.scores
    size, matmul = rows * width, 2 * rows * width * width
    mix = 2 * scores * tape.head_width
    normed = _layer_norm(tape, f"{at}.norm1", x)
    qkv = tape.op(f"{at}.qkv", [normed], 3 * matmul, out=3 * size)
    q, k, v = (tape.op(f"{at}.{name}", [qkv], size, out=size) for name in "QKV")
    raw = tape.op(f"{at}.scores", [q, k], mix, out=scores)
    scaled = tape.op(f"{at}.scaled", [raw], scores, out=scores)
    probs = tape.op(f"{at}.softmax", [scaled], 5 * scores, out=scores)
    mixed = tape.op(f"{at}.mixed", [probs, v], mix, out=size)
    merged = tape.op(f"{at}.merged", [mixed], size, out=size)
    projected = tape.op(f"{at}.proj", [merged], matmul, out=size)
    middle = tape.op(f"{at}.add1", [x, projected], size, out=size)
    normed2 = _layer_norm(tape, f"{at}.norm2", middle)
    wide = tape.op(f"{at}.fc1", [normed2], 4 * matmul, out=4 * size)
    active = tape.op(f"{at}.gelu", [wide], 8 * 4 * size, out=4 * size)
    narrow = tape.op(f"{at}.fc2", [active], 4 * matmul, out=size)
    out = tape.op(f"{at}.add2", [middle, narrow], size, out=size)
    names = ("x", "normed", "q", "k", "v", "probs", "merged", "middle", "normed2", "wide", "active")
    values = (x, normed, q, k, v, probs, merged, middle, normed2, wide, active)
    return out, dict(zip(names, values, strict=True))


def _backward(tape: _Tape, at: str, grad: str, saved: dict[str, str]) -> str:
    rows, width, scores = tape.rows, tape.width, tape.scores
    size, mix = rows * width, 2 * scores * tape.head_width
    active = _linear_grad(tape, f"{at}.fc2", grad, saved["active"], (4 * width, width))
    wide = tape.op(f"{at}.gelu.grad", [active, saved["wide"]], 12 * 4 * size, out=4 * size)
    normed2 = _linear_grad(tape, f"{at}.fc1", wide, saved["normed2"], (width, 4 * width))
    through = _layer_norm_grad(tape, f"{at}.norm2", normed2, saved["middle"])
    middle = tape.op(f"{at}.add1.grad", [grad, through], size, out=size)
    merged = _linear_grad(tape, f"{at}.proj", middle, saved["merged"], (width, width))
    mixed = tape.op(f"{at}.merged.grad", [merged], size, out=size)
    v = tape.op(f"{at}.V.grad", [mixed, saved["probs"]], mix, out=size)
    probs = tape.op(f"{at}.softmax.in", [mixed, saved["v"]], mix, out=scores)
    scaled = tape.op(f"{at}.softmax.grad", [probs, saved["probs"]], 3 * scores, out=scores)
    raw = tape.op(f"{at}.scaled.grad", [scaled], scores, out=scores)
    q = tape.op(f"{at}.Q.grad", [raw, saved["k"]], mix, out=size)
    k = tape.op(f"{at}.K.grad", [raw, saved["q"]], mix, out=size)
    qkv = tape.op(f"{at}.qkv.cat", [q, k, v], 3 * size, out=3 * size)
    normed = _linear_grad(tape, f"{at}.qkv", qkv, saved["normed"], (width, 3 * width))
    through = _layer_norm_grad(tape, f"{at}.norm1", normed, saved["x"])
    return tape.op(f"{at}.add2.grad", [middle, through], size, out=size)
