"""Programs that differentiate with torch.func, or compute in lower precision."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from truth_facts import CPP, GRAD, GRADIENT, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

ROWS, IN, HIDDEN, OUT = 257, 43, 89, 29
ALIVE = f"{SAVED}|{GRADIENT}|{UNNAMED}"


def mlp():
    return nn.Sequential(nn.Linear(IN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUT))


@pattern(
    *(
        Fact(f32(16, *shape), "temporary", "call of one", f"{var('grads')}|{GRADIENT}|{UNNAMED}", ".*[02]")
        for shape in ((HIDDEN, IN), (OUT, HIDDEN))
    ),
)
def gradients_per_sample():
    net = mlp()
    parameters = {name: value.detach() for name, value in net.named_parameters()}
    x = torch.randn(16, IN)

    def loss(parameters, row):
        return torch.func.functional_call(net, parameters, row).pow(2).mean()  # peak: call of one

    with memwatch.profile() as prof:
        for _ in range(2):
            grads = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
            del grads
    return Ran(prof)


@pattern(
    *(
        Fact(f32(32, *shape), "temporary|held", "private loss", holder, ".*[02]", most=1)
        for shape in ((HIDDEN, IN), (OUT, HIDDEN))
        for holder in (
            var("per_row"),
            f"{GRADIENT}|{UNNAMED}",
        )  # of the previous pass, and of the running pass
    ),
)
def gradients_per_sample_clipped():
    net = mlp()
    parameters = {name: value.detach() for name, value in net.named_parameters()}
    x, y = torch.randn(32, IN), torch.randint(0, OUT, (32,))

    def loss(parameters, row, label):
        out = torch.func.functional_call(net, parameters, (row[None],))  # peak: private loss
        return functional.cross_entropy(out, label[None])

    with memwatch.profile() as prof:
        for _ in range(3):
            per_row = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, x, y)
            norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in per_row.values()]).norm(dim=0)
            clipped = {name: torch.einsum("n,n...->...", 1 / norms, grad) for name, grad in per_row.items()}
            parameters = {name: value - 0.1 * clipped[name] for name, value in parameters.items()}
    return Ran(prof)


@pattern(
    Fact(f32(61, 61, 61), "input|held", "", var("matrix"), op="^$"),
    Fact(f32(61, 61, 61), "temporary|activation", "hessian", f"{UNNAMED}|{GRADIENT}|{SAVED}|{CPP}", op="."),
)
def hessian():
    matrix = torch.randn(61, 61, 61)
    with memwatch.profile() as prof:
        torch.func.hessian(lambda x: (matrix @ x).tanh().sum())(torch.randn(61))  # peak: hessian
    return Ran(prof)


@pattern(
    Fact(f32(ROWS, HIDDEN), "temporary", "tangent", f"{UNNAMED}|{CPP}|not seen", "[01]"),
    Fact(f32(ROWS, HIDDEN), "temporary", "tangent", f"{UNNAMED}|{CPP}|not seen"),
    Fact(f32(ROWS, IN), "input|temporary|held", "point|direction", f"{var('x')}|{var('v')}"),
)
def forward_mode():
    net = mlp()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    with memwatch.profile() as prof:
        x = torch.randn(ROWS, IN)  # peak: point
        v = torch.randn(ROWS, IN)  # peak: direction
        for _ in range(2):
            torch.func.jvp(net, (x,), (v,))  # peak: tangent
    return Ran(prof)


@pattern(
    Fact(f32(HIDDEN, IN) // 2, "temporary|held|activation", "autocast", f"autocast|{SAVED}", "0", "_to_copy"),
    Fact(
        f32(OUT, HIDDEN) // 2, "temporary|held|activation", "autocast", f"autocast|{SAVED}", "2", "_to_copy"
    ),
    Fact(f32(1500, HIDDEN) // 2, "activation", "autocast", SAVED, "1", "tanh.default"),
    Fact(f32(1500, HIDDEN) // 2, "temporary", "autocast", f"{UNNAMED}|{RESULT}", "0", "addmm"),
    Fact(f32(1500, HIDDEN) // 2, "temporary", "autocast", GRADIENT, "[12]", "mm.default|tanh_backward"),
    Fact(f32(1500, IN) // 2, "activation", "autocast", SAVED, "0"),
    Fact(f32(1500, IN), "input", "autocast batch", var("x")),
    Fact(f32(1500, OUT), "activation", "autocast loss", SAVED, op="_to_copy"),
    Fact(f32(1500, OUT), "temporary", "autocast loss", f"{GRADIENT}|{UNNAMED}", op="pow|mul|div|expand"),
    Fact(f32(1500, OUT) // 2, "temporary", "autocast", var("y"), "2", "addmm"),
    Fact(f32(1500, OUT) // 2, "temporary", "autocast loss", GRADIENT, op="_to_copy"),
)
def autocast_to_bfloat16():
    net = mlp()
    with memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(1500, IN)  # peak: autocast batch
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = net(x)  # peak: autocast
                loss = y.float().pow(2).mean()  # peak: autocast loss
            loss.backward()
            net.zero_grad()
            del x, y, loss
    return Ran(prof, {"net": net})


@pattern(
    *(
        Fact(f32(*shape), "held", "master", var("master"), op="_to_copy")
        for shape in ((HIDDEN, IN), (OUT, HIDDEN))
    ),
    *(
        Fact(
            f32(*shape),
            "held|gradient|temporary",
            "master gradient",
            rf"{var('master')}|`master\[\d\]\.grad`|{GRAD}|{RESULT}",
        )
        for shape in ((HIDDEN, IN), (OUT, HIDDEN))
    ),
)
def master_weights():
    net = mlp().bfloat16()
    with memwatch.profile() as prof:
        master = [weight.detach().float().requires_grad_() for weight in net.parameters()]  # peak: master
        for _ in range(3):
            net(torch.randn(4, IN, dtype=torch.bfloat16)).pow(2).mean().backward()
            with torch.no_grad():
                for weight, copy in zip(net.parameters(), master):
                    copy.grad = weight.grad.float()  # peak: master gradient
                    weight.grad = None
                for weight, copy in zip(net.parameters(), master):
                    copy.sub_(copy.grad, alpha=0.1)
                    copy.grad = None
                    weight.copy_(copy)
            prof.step()
    return Ran(prof, {"net": net})
