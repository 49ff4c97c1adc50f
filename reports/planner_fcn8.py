"""FCN-8 on VGG-16 (batch 32, 416 x 608), one training step: the graph "CM1" of Checkmate's and Moccasin's tables.

Rebuilt from the architecture: every layer makes one float32 buffer and costs its multiply-adds; the backward of a
layer costs twice that, makes a buffer of the same size, and reads the layer's output, the outputs of its consumers
and their gradients. 73 ops, 149 edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memwatch.planner import Graph, OpSpec

BATCH = 32
CLASSES = 19
FLOAT_BYTES = 4


@dataclass
class _Layers:
    """Layers in the order they run: name -> (inputs, elements, multiply-adds)."""

    made: dict[str, tuple[tuple[str, ...], int, int]] = field(default_factory=dict)
    channels: dict[str, int] = field(default_factory=dict)

    def add(
        self, name: str, inputs: tuple[str, ...], size: tuple[int, int, int], cost_per_element: int
    ) -> str:
        numel = BATCH * size[0] * size[1] * size[2]
        self.made[name] = (inputs, numel, numel * cost_per_element)
        self.channels[name] = size[2]
        return name

    def convolution(self, name: str, source: str, size: tuple[int, int, int], kernel: int) -> str:
        return self.add(name, (source,) if source else (), size, kernel**2 * self.channels.get(source, 3))


def fcn8_step() -> Graph:
    """Forward, loss and backward of FCN-8; the gradient of the first layer is kept."""
    layers = _Layers()
    pools = _encoder(layers)
    _decoder(layers, pools)
    layers.made["loss"] = (("softmax",), BATCH, 0)
    consumers: dict[str, list[str]] = {name: [] for name in layers.made}
    for name, (inputs, _, _) in layers.made.items():
        for source in inputs:
            consumers[source].append(name)
    ops = [
        OpSpec(name, inputs, {name: FLOAT_BYTES * numel}, float(cost))
        for name, (inputs, numel, cost) in layers.made.items()
    ]
    for name, (_, numel, cost) in reversed(layers.made.items()):
        if name != "loss":
            gradients = [f"{other}.grad" for other in consumers[name] if other != "loss"]
            reads = (name, *consumers[name], *gradients)
            ops.append(OpSpec(f"{name}.grad", reads, {f"{name}.grad": FLOAT_BYTES * numel}, 2.0 * cost))
    return Graph.build(ops, keep=[ops[-1].name])


def _encoder(layers: _Layers) -> list[str]:
    """VGG-16 without its head; gives the pools."""
    height, width, last, pools = 416, 608, "", []
    for block, (count, channels) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for number in range(1, count + 1):
            last = layers.convolution(f"block{block}.conv{number}", last, (height, width, channels), 3)
        height, width = height // 2, width // 2
        last = layers.add(f"block{block}.pool", (last,), (height, width, channels), 0)
        pools.append(last)
    return pools


def _decoder(layers: _Layers, pools: list[str]) -> None:
    """Score at a 32nd of the size, then up twice with skips from pools 4 and 3, then up to full size."""
    last = pools[-1]
    for number, kernel in ((6, 7), (7, 1)):
        last = layers.convolution(f"fc{number}", last, (13, 19, 4096), kernel)
        last = layers.add(f"dropout{number}", (last,), (13, 19, 4096), 0)
    last = layers.convolution("score", last, (13, 19, CLASSES), 1)
    for pool, height, width in ((pools[3], 26, 38), (pools[2], 52, 76)):
        up = layers.add(f"up.{pool}", (last,), (height + 2, width + 2, CLASSES), CLASSES)
        crop = layers.add(f"crop.{pool}", (up,), (height + 2, width, CLASSES), 0)
        size = (height, width, CLASSES)
        if pool == pools[3]:
            crop = layers.add(f"crop2.{pool}", (crop,), size, 0)
            skip = layers.convolution(f"skip.{pool}", pool, size, 1)
        else:
            skip = layers.convolution(f"skip.{pool}", pool, size, 1)
            crop = layers.add(f"crop2.{pool}", (crop,), size, 0)
        last = layers.add(f"add.{pool}", (skip, crop), size, 2)
    last = layers.add("up", (last,), (424, 616, CLASSES), CLASSES)
    last = layers.add("reshape", (last,), (424, 616, CLASSES), 0)
    layers.add("softmax", (last,), (424, 616, CLASSES), 1)
