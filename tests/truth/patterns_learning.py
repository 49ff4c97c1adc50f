"""Ways to learn that need no `nn.Module`, or more than its forward: functions of weights, queues, graphs, policies."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional
from truth_facts import ANY, GRADIENT, KERNEL, RESULT, SAVED, UNNAMED, Fact, Ran, f32, pattern, var

import memwatch

IN, HIDDEN, ROWS = 403, 307, 701
PASSING = f"{GRADIENT}|{UNNAMED}|{RESULT}"


def predict(params, x):
    h = torch.sin(x @ params["w1"])  # peak: h
    return h @ params["w2"]  # peak: y


@pattern(
    Fact(f32(IN, HIDDEN), "held|parameter", "", "`params`"),
    Fact(f32(IN, HIDDEN), "held|temporary", "moment|", f"`moments`|{PASSING}", op="mul|add|^$"),
    Fact(f32(IN, HIDDEN), "held|temporary|gradient", "h", f"`grads`|`g`|{PASSING}", op="mm"),
    Fact(f32(IN, HIDDEN), "temporary", "update", PASSING),
    Fact(f32(ROWS, HIDDEN), "activation", "h", SAVED),
    Fact(f32(ROWS, HIDDEN), "temporary", "h|y", PASSING),
    Fact(f32(ROWS, IN), "input|activation|temporary", "x", f"{SAVED}|{var('x')}"),
)
def weights_in_a_dictionary():
    params = {
        "w1": torch.randn(IN, HIDDEN, requires_grad=True),
        "w2": torch.randn(HIDDEN, 11, requires_grad=True),
    }
    moments = {name: torch.zeros_like(value) for name, value in params.items()}
    with memwatch.profile() as prof:
        for _ in range(4):
            x = torch.randn(ROWS, IN)  # peak: x
            grads = torch.autograd.grad(predict(params, x).square().mean(), list(params.values()))
            with torch.no_grad():
                for name, g in zip(params, grads):
                    moments[name] = 0.9 * moments[name] + g  # peak: moment
                    params[name].sub_(0.01 * moments[name])  # peak: update
    return Ran(prof)


class Contrast:
    """Momentum contrast, with its queue in a plain object."""

    def __init__(self):
        self.q = nn.Sequential(nn.Linear(301, 199), nn.GELU(), nn.Linear(199, 37))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.queue = functional.normalize(torch.randn(6007, 37), dim=1)
        self.at = 0

    def loss(self, x, other):
        q = functional.normalize(self.q(x), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.k.parameters(), self.q.parameters()):
                slow.lerp_(fast, 0.01)
            k = functional.normalize(self.k(other), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().T], 1)  # peak: logits
        self.queue[self.at : self.at + len(k)] = k
        self.at = (self.at + len(k)) % 6000
        return functional.cross_entropy(logits / 0.07, torch.zeros(len(q), dtype=torch.long))  # peak: loss


@pattern(
    Fact(f32(6007, 37), "held", "", r"\.queue"),
    Fact(f32(6007, 37), "activation", "logits", SAVED, op="clone"),
    Fact(
        f32(60, 6008), "activation|temporary", "logits|loss",
        rf"{SAVED}|{var('logits')}|{var('input', 'cross_entropy')}|{PASSING}",
    ),
    Fact(f32(60, 6007), "activation|temporary", "logits", f"{SAVED}|{PASSING}"),
    Fact(f32(60, 301), "input", "views", f"{SAVED}|{var('x')}|{var('other')}"),
)  # fmt: skip
def momentum_contrast():
    contrast = Contrast()
    optimizer = torch.optim.SGD(contrast.q.parameters(), lr=0.03, momentum=0.9)
    with memwatch.profile() as prof:
        for _ in range(4):
            x = torch.randn(60, 301)  # peak: views
            contrast.loss(x, x + 0.1 * torch.randn(60, 301)).backward()  # peak: views
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"q": contrast.q, "k": contrast.k})


NODES, EDGES, WIDTH = 503, 4001, 101


@pattern(
    Fact(f32(EDGES, WIDTH), "activation", "message", SAVED, "", "index"),
    Fact(f32(EDGES, WIDTH), "temporary", "gather", f"{PASSING}", "", "index_select"),
    Fact(f32(NODES, WIDTH), "activation", "gather", f"{SAVED}|{var('sums')}", "", "zeros"),
    Fact(f32(NODES, WIDTH), "activation", "into|out", f"{SAVED}|{var('h')}|{var('y')}", "", "relu"),
    Fact(f32(NODES, WIDTH), "temporary", "into|out", PASSING, ".*"),
    Fact(f32(NODES, 37), "input", "nodes", SAVED),
    Fact(16 * EDGES, "held|input", "", f"{SAVED}|{var('edges')}"),
)
def messages_along_a_graph():
    into, out = nn.Linear(37, WIDTH), nn.Linear(WIDTH, WIDTH)
    edges = torch.randint(NODES, (2, EDGES))
    optimizer = torch.optim.Adam([*into.parameters(), *out.parameters()], fused=True)
    with memwatch.profile() as prof:
        for _ in range(3):
            h = into(torch.randn(NODES, 37)).relu()  # peak: into # peak: nodes
            messages = h[edges[0]]  # peak: message
            sums = torch.zeros(NODES, WIDTH).index_add_(0, edges[1], messages)  # peak: gather
            y = out(sums).relu()  # peak: out
            y.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"into": into, "out": out})


TIMES, WORLDS, SEEN = 96, 32, 48


@pattern(
    Fact(f32(TIMES, WORLDS, SEEN), "held|input", "buffers", var("seen")),
    Fact(f32(TIMES * WORLDS // 2, SEEN), "input", "policy", SAVED, op="index"),
    Fact(f32(TIMES * WORLDS // 2, 128), "activation", "policy", SAVED, "1", "relu"),
    Fact(f32(TIMES * WORLDS // 2, 128), "temporary", "policy", PASSING, "[12]", "mm|threshold"),
    Fact(ANY, "activation|held|temporary", "policy|distribution|loss|buffers", ".*", ".*"),
)
def policy_with_rollouts():
    net = nn.Sequential(nn.Linear(SEEN, 128), nn.ReLU(), nn.Linear(128, 9))
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    with memwatch.profile() as prof:
        for _ in range(2):
            seen, chosen = torch.zeros(TIMES, WORLDS, SEEN), torch.zeros(TIMES, WORLDS)  # peak: buffers
            world = torch.randn(WORLDS, SEEN)
            for t in range(TIMES):
                with torch.no_grad():
                    likely = torch.distributions.Categorical(logits=net(world))
                    action = likely.sample()
                seen[t], chosen[t] = world, likely.log_prob(action)
                world = torch.randn(WORLDS, SEEN)
            for rows in torch.randperm(TIMES * WORLDS).chunk(2):
                y = net(seen.flatten(0, 1)[rows])  # peak: policy
                likely = torch.distributions.Categorical(logits=y)  # peak: distribution
                ratio = (likely.logits[:, 0] - chosen.flatten()[rows]).exp()  # peak: loss
                (ratio.mean() - 0.01 * likely.entropy().mean()).backward()  # peak: loss
                optimizer.step()
                optimizer.zero_grad()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(12, 40_003), "temporary", "noise", f"{var('noise')}"),
    Fact(f32(12, 40_003), "temporary|held", "population", f"{var('population')}|{PASSING}"),
    Fact(f32(40_003), "temporary|held", "theta|", f"{var('theta')}|{PASSING}"),
)
def evolution_without_gradients():
    theta = torch.randn(40_003)
    with memwatch.profile() as prof:
        for _ in range(4):
            noise = torch.randn(12, theta.numel())  # peak: noise
            population = theta + 0.1 * noise  # peak: population
            scores = torch.stack([-(one - 1).square().sum() for one in population])
            theta = theta + 0.01 * (scores @ noise) / 12  # peak: theta
    return Ran(prof)


class Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * functional.softplus(x).tanh()  # peak: mish

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        t = functional.softplus(x).tanh()  # peak: again
        s = torch.sigmoid(x)  # peak: again
        return g * (t + x * s * (1 - t * t))  # peak: result


class Activation(nn.Module):
    def forward(self, x):
        return Mish.apply(x)


@pattern(
    Fact(f32(809, 353), "activation", "net", SAVED, "[02]", "addmm"),
    Fact(f32(809, 353), "activation", "mish", SAVED, "[13]", "mul"),
    Fact(
        f32(809, 353), "temporary", "again|result",
        rf"{var('t')}|{var('s')}|{var('self', '__rsub__')}|{PASSING}", "([13])?",
    ),
    Fact(f32(809, 353), "temporary", "net|mish", f"{var('g')}|{PASSING}", "[0-4]"),
    Fact(f32(809, 59), "input", "x", SAVED),
)  # fmt: skip
def function_that_computes_again_by_hand():
    net = nn.Sequential(
        nn.Linear(59, 353), Activation(), nn.Linear(353, 353), Activation(), nn.Linear(353, 1)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(809, 59)  # peak: x
            net(x).mean().backward()  # peak: net
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(555, 401), "activation", "net", "checkpoint", "0", "addmm"),
    Fact(f32(555, 401), "recomputed", "net", "checkpoint", "1", "gelu"),
    Fact(f32(555, 401), "temporary", "net", PASSING, "[12]"),
    Fact(f32(555, 101), "activation|input|recomputed|temporary", "net|x", f"checkpoint|{SAVED}|{PASSING}", ".*"),
    Fact(ANY, "workspace", "net", KERNEL, ".*"),
    Fact(ANY, "temporary|activation", "|loss of the net", ".*", ".*"),
)  # fmt: skip
def checkpoint_that_saves_matrix_products():
    from functools import partial

    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    net = nn.Sequential(nn.Linear(101, 401), nn.GELU(), nn.Linear(401, 101), nn.GELU(), nn.Linear(101, 101))
    saves = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with memwatch.profile() as prof:
        for _ in range(3):
            x = torch.randn(555, 101)  # peak: x
            y = checkpoint(net, x, use_reentrant=False, context_fn=saves)  # peak: net
            y.square().mean().backward()  # peak: loss of the net
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"net": net})
