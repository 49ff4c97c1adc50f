"""Programs beside modules and parameters: leaves of their own, overrides of torch's calls, own hooks."""

from __future__ import annotations

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from truth_facts import ANY, GRAD, GRADIENT, KERNEL, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

IN, OUT, ROWS = 701, 503, 97
PASSING = f"{UNNAMED}|{GRADIENT}"
LAYERS, WIDTH, TALL = 4, 211, 307


@pattern(
    Fact(f32(IN, OUT), "held|input", "", var("w"), op="^$"),
    Fact(f32(IN, OUT), "gradient", "product", GRAD, op="mm"),
    Fact(f32(IN, OUT), "temporary", "update", PASSING, op="mul"),
    Fact(f32(ROWS, IN), "input|activation", "batch", f"{SAVED}|{var('x')}"),
    Fact(f32(ROWS, OUT), "activation|temporary", "product", f"{SAVED}|{PASSING}|{var('y')}"),
)
def weight_descended_by_hand():
    w = torch.randn(IN, OUT, requires_grad=True)
    with memwatch.profile() as prof:
        for _ in range(4):
            x = torch.randn(ROWS, IN)  # peak: batch
            y = (x @ w).tanh()  # peak: product
            y.square().sum().backward()
            with torch.no_grad():
                w -= 0.01 * w.grad  # peak: update
            w.grad = None
    return Ran(prof)


@pattern(
    Fact(f32(IN, OUT), "parameter", "", "parameter `latent`", op="^$"),
    Fact(f32(IN, OUT), "gradient", "look", r"`latent` \.grad", "0", op="div|expand|mul|copy|clone|new_empty"),
    Fact(f32(IN, OUT), "gradient", "look", r"`latent` \.grad", "", op="div|expand|mul|copy|clone|new_empty"),
    Fact(f32(IN, OUT), "optimizer state", "step", "Adam `exp_avg(_sq)?` of `latent`", op="zeros"),
    Fact(f32(IN, OUT), "temporary", "step", "within the optimizer's step|the running op"),
    Fact(ANY, "temporary|optimizer state|activation", "step|look", ".*", ".*"),
)
def latent_that_an_optimizer_steps():
    latent = torch.randn(IN, OUT, requires_grad=True)
    optimizer = torch.optim.Adam([latent], foreach=False)
    with memwatch.profile() as prof:
        for _ in range(3):
            latent.sum().backward()  # peak: look
            optimizer.step()  # peak: step
            optimizer.zero_grad()
    return Ran(prof)


class Attack:
    """Searches for the input change that changes an answer most: a new leaf for each batch."""

    def __init__(self, net):
        self.net = net

    def of(self, x, y):
        self.change = torch.zeros_like(x, requires_grad=True)  # peak: change
        for _ in range(2):
            functional.cross_entropy(self.net(x + self.change), y).backward()  # peak: attacked
            with torch.no_grad():
                self.change += 0.01 * self.change.grad.sign()  # peak: moved
            self.change.grad = None
        return (x + self.change).detach()


@pattern(
    Fact(f32(ROWS, IN), "temporary|held|input", "batch", f"{var('x')}|{var('images')}", op="randn"),
    Fact(
        f32(ROWS, IN),
        "temporary|held|input",
        "change",
        r"`self\.change`|`attack\.change`|\.change",
        op="zeros",
    ),
    Fact(f32(ROWS, IN), "gradient", "attacked", GRAD, "0", op="mm"),
    Fact(f32(ROWS, IN), "gradient", "attacked", GRAD, "", op="mm"),
    Fact(f32(ROWS, IN), "temporary", "moved", PASSING, op="sign|mul"),
    Fact(f32(ROWS, IN), "activation|input", "attacked", f"{SAVED}|{PASSING}|{var('input')}", op="add"),
    Fact(ANY, "temporary|activation", "attacked|labels", ".*", ".*"),
)
def attack_with_new_leaves():
    net = nn.Sequential(nn.Linear(IN, 61), nn.ReLU(), nn.Linear(61, 7)).requires_grad_(False)
    attack = Attack(net)
    with memwatch.profile() as prof:
        for _ in range(3):
            images = torch.randn(ROWS, IN)  # peak: batch
            attack.of(images, torch.randint(7, (ROWS,)))  # peak: labels
    return Ran(prof, {"net": net})


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Counting(TorchDispatchMode):
    """Counts ops, and keeps a copy of the last result."""

    count, last = 0, None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += 1
        if result.numel() == 199 * 401:
            self.last = result * 2  # peak: copy
        return result


@pattern(
    Fact(f32(409, 311), "input|held|temporary", "", var("x"), op="^$"),
    Fact(f32(311, 307), "input|held|temporary", "", var("w"), op="^$"),
    Fact(f32(409, 307), "temporary", "mm", f"{var('h')}|{PASSING}", op="mm"),
    Fact(f32(409, 307), "temporary", "tanh", f"{var('g')}|{PASSING}", op="tanh"),
    Fact(f32(409, 307), "temporary", "product", PASSING, op="mul"),
)
def subclass_that_hands_on():
    x, w = torch.randn(409, 311).as_subclass(Tagged), torch.randn(311, 307)
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(3):
            h = x @ w  # peak: mm
            g = h.tanh()  # peak: tanh
            (h * g).sum()  # peak: product
            del h, g
    return Ran(prof)


@pattern(
    Fact(f32(199, 401), "temporary|held", "drawn", var("x"), op="randn"),
    Fact(f32(199, 401), "temporary|held", "copy", r"mode|self\.last|\.last|the running op", op="mul"),
    Fact(f32(199, 402), "temporary", "joined", f"{var('y')}|{PASSING}"),
    Fact(ANY, "temporary", "column|joined", ".*"),
)
def mode_that_hands_on():
    with Counting() as mode, memwatch.profile() as prof:
        x = torch.randn(199, 401)  # peak: drawn
        y = torch.cat([x, torch.ones(199, 1)], 1)  # peak: joined # peak: column
    assert mode.count
    assert y.numel()
    return Ran(prof)


class Offloading(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        with save_on_cpu():
            for layer in self.layers:
                x = functional.gelu(layer(x))  # peak: layer
        return x


@pattern(
    Fact(f32(TALL, WIDTH), "activation", "layer", f"{SAVED}|{PASSING}", "(net.)?layers.[0-3]", "addmm"),
    Fact(f32(TALL, WIDTH), "activation", "layer", f"{SAVED}|{PASSING}", "net|Offloading", "gelu.default"),
    Fact(f32(TALL, WIDTH), "temporary", "layer|train", PASSING, ".*", "mm|mul|expand|gelu_backward"),
    Fact(f32(TALL, WIDTH), "workspace", "layer", KERNEL, ".*", "gelu_backward"),
    Fact(f32(TALL, WIDTH), "input", "batch", f"{SAVED}|{var('x')}", op="randn"),
)
def activations_that_torch_offloads():
    net = Offloading()
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(TALL, WIDTH)  # peak: batch
            net(x).sum().backward()  # peak: train
            net.zero_grad()
    return Ran(prof, {"net": net})


def halved(tensor):
    is_weight = isinstance(tensor, nn.Parameter) or tensor._base is not None
    return tensor if is_weight else tensor.to(torch.bfloat16)  # peak: pack


def doubled(packed):
    return packed.float() if packed.dtype is torch.bfloat16 else packed  # peak: unpack


@pattern(
    Fact(2 * TALL * 401, "activation", "pack", f"{SAVED}|{PASSING}", "1|2"),
    Fact(2 * TALL * 199, "activation", "pack", f"{SAVED}|{PASSING}", "3"),
    Fact(2 * TALL * WIDTH, "activation", "pack", f"{SAVED}|{PASSING}", "0"),
    Fact(f32(TALL, 401), "temporary", "unpack|run", PASSING, ".*"),
    Fact(f32(TALL, 199), "temporary", "unpack|run", f"{PASSING}|{var('y')}", ".*"),
    Fact(f32(TALL, WIDTH), "input|temporary", "batch|unpack", f"{var('x')}|{PASSING}"),
)
def activations_packed_in_half():
    net = nn.Sequential(nn.Linear(WIDTH, 401), nn.GELU(), nn.Linear(401, 199), nn.Tanh())
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(TALL, WIDTH)  # peak: batch
            with saved_tensors_hooks(halved, doubled):
                y = net(x)  # peak: run
            y.sum().backward()
            net.zero_grad()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(OUT, WIDTH), "activation", "loss", SAVED, "1", "tanh.default"),
    Fact(f32(OUT, WIDTH), "temporary", "loss", PASSING, "[0-2]", "mm|tanh_backward|mul"),
    Fact(f32(OUT, 101), "activation|input|temporary", "batch", f"{SAVED}|{var('x')}"),
    Fact(ANY, "held|temporary|activation|input", "loss|update|batch", ".*", ".*"),
)
def gradients_of_a_function_of_weights():
    net = nn.Sequential(nn.Linear(101, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3))
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(weights, x, y):
        return functional.mse_loss(torch.func.functional_call(net, weights, (x,)), y)  # peak: loss

    with memwatch.profile() as prof:
        for _ in range(4):
            x, y = torch.randn(OUT, 101), torch.randn(OUT, 3)  # peak: batch
            grads = torch.func.grad(loss)(weights, x, y)
            weights = {name: each - 0.1 * grads[name] for name, each in weights.items()}  # peak: update
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(672, WIDTH), "activation", "hidden", SAVED, "layer|Linear", "linear"),
    Fact(f32(672, WIDTH), "activation", "hidden", SAVED, "", "gelu.default"),
    Fact(f32(672, WIDTH), "temporary", "loss", PASSING, ""),
    Fact(f32(672, 61), "input", "nested", f"{SAVED}|{var('nested')}"),
    *(Fact(f32(rows, 61), "held|temporary", "parts", var("parts")) for rows in (101, 211, 307, 53)),
)
def jagged_batches():
    layer = nn.Linear(61, WIDTH)
    with memwatch.profile() as prof:
        for _ in range(3):
            parts = [torch.randn(rows, 61) for rows in (101, 211, 307, 53)]  # peak: parts
            nested = torch.nested.as_nested_tensor(parts, layout=torch.jagged)  # peak: nested
            hidden = functional.gelu(layer(nested)).values()  # peak: hidden
            hidden.square().sum().backward()  # peak: loss
            layer.zero_grad()
    return Ran(prof, {"layer": layer})


@pattern(
    Fact(f32(401, OUT), "activation", "run", SAVED, "[0-3]", "addmm|gelu.default"),
    Fact(f32(401, OUT), "temporary", "run", PASSING, "[0-4]", "mm|gelu_backward"),
    Fact(f32(401, WIDTH), "input", "run", SAVED, "", "randn"),
    Fact(ANY, "temporary|activation|gradient", "run|step", ".*", ".*"),
)
def steps_in_hooks_of_gradients():
    net = nn.Sequential(nn.Linear(WIDTH, OUT), nn.GELU(), nn.Linear(OUT, OUT), nn.GELU(), nn.Linear(OUT, 5))
    steppers = {each: torch.optim.SGD([each], lr=0.1, momentum=0.9) for each in net.parameters()}

    def step(parameter):
        steppers[parameter].step()  # peak: step
        steppers[parameter].zero_grad()

    for each in net.parameters():
        each.register_post_accumulate_grad_hook(step)
    with memwatch.profile() as prof:
        for _ in range(3):
            net(torch.randn(401, WIDTH)).square().mean().backward()  # peak: run
    return Ran(prof, {"net": net})
