"""Programs that keep activations, or that differentiate in other ways than one backward."""

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


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(3, 10, 3, padding=1), nn.Conv2d(10, 14, 3, padding=1)
        self.middle = nn.Conv2d(14, 14, 3, padding=1)
        self.up2, self.up1 = nn.Conv2d(28, 10, 3, padding=1), nn.Conv2d(20, 3, 3, padding=1)

    def forward(self, x):
        skip1 = functional.silu(self.down1(x))  # peak: skip1
        skip2 = functional.silu(self.down2(functional.max_pool2d(skip1, 2)))  # peak: skip2
        h = self.middle(skip2)  # peak: middle
        h = self.up2(torch.cat([h, skip2], 1))  # peak: joined2
        h = functional.interpolate(h, scale_factor=2)  # peak: enlarged
        return self.up1(torch.cat([h, skip1], 1))  # peak: joined1


@pattern(
    Fact(f32(2, 10, 44, 44), "temporary", "skip1", var("skip1"), "net|UNet", "silu"),
    Fact(f32(2, 10, 44, 44), "temporary", "enlarged", var("h"), "net|UNet", "upsample"),
    Fact(f32(2, 14, 22, 22), "temporary", "skip2", var("skip2"), "net|UNet", "silu"),
    Fact(f32(2, 20, 44, 44), "temporary", "joined1", f"{UNNAMED}|{RESULT}|{var('input')}", "net|UNet", "cat"),
    Fact(f32(2, 3, 44, 44), "input", "image", f"{var('x')}|{var('image')}", op="randn"),
    Fact(f32(2, 3, 44, 44), "temporary", "joined1", RESULT, "up1", "convolution"),
)
def unet_skip_connections():
    net = UNet().eval()
    with torch.no_grad(), memwatch.profile() as prof:
        image = torch.randn(2, 3, 44, 44)  # peak: image
        for _ in range(2):
            net(image)
    return Ran(prof, {"net": net})


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(IN, 32), nn.Linear(IN, 32)

    def forward(self, x, maps):
        weights = (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1)  # peak: map
        maps.append(weights)
        return weights @ x


@pattern(
    Fact(
        f32(3, 83, 83),
        "held|temporary|input",
        "map",
        f"{var('maps')}|{var('weights')}|{RESULT}",
        ".*[012]|Attends",
        "softmax",
    ),
    Fact(f32(3, 83, 83), "temporary", "map", UNNAMED, ".*[012]|Attends", "bmm"),
)
def attention_maps_in_a_list():
    layers, maps = nn.ModuleList(Attends() for _ in range(3)), []
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(3, 83, IN)
            for layer in layers:
                x = layer(x, maps)
    return Ran(prof)


@pattern(
    Fact(f32(ROWS, HIDDEN), "held|temporary", "features", "`features`|`layers`", "[01]"),
    Fact(f32(ROWS, OUT), "held|temporary", "features", f"`features`|{RESULT}|`layers`", "2"),
    Fact(f32(ROWS, IN), "input|temporary", "images", f"{var('images')}|{UNNAMED}|argument of"),
)
def features_stored_by_hooks():
    net, features = mlp().eval(), {}

    def keep(name):
        def hook(module, args, output):
            features[name] = output

        return hook

    for name, layer in net.named_children():
        layer.register_forward_hook(keep(name))
    with torch.no_grad(), memwatch.profile() as prof:
        for _ in range(3):
            images = torch.randn(ROWS, IN)  # peak: images
            net(images)  # peak: features
    return Ran(prof, {"net": net})


@pattern(
    Fact(
        f32(ROWS, 61),
        "activation|input|temporary",
        "hidden state",
        rf"{var('states')}|{SAVED}|{var('h')}",
        "cell|GRUCell",
    ),
    Fact(f32(ROWS, 61), "input", "first state", SAVED),
    Fact(f32(ROWS, 3 * 61), "activation", "hidden state", SAVED, "cell|GRUCell"),
    Fact(f32(12, ROWS, 61), "activation", "stacked", SAVED, op="stack|cat"),
    Fact(f32(12, ROWS, 61), "temporary", "stacked", GRADIENT, op="div|pow|mul|expand|fill"),
    Fact(f32(12, ROWS, IN), "input", "sequence", f"{var('sequence')}|{SAVED}"),
)
def hidden_states_of_an_unrolled_cell():
    cell = nn.GRUCell(IN, 61)
    with memwatch.profile() as prof:
        sequence = torch.randn(12, ROWS, IN)  # peak: sequence
        h, states = torch.zeros(ROWS, 61), []  # peak: first state
        for x in sequence:
            h = cell(x, h)  # peak: hidden state
            states.append(h)
        torch.stack(states).pow(2).mean().backward()  # peak: stacked
    return Ran(prof, {"cell": cell})


@pattern(
    Fact(f32(17, 331, IN), "input|activation", "text", f"{var('text')}|{SAVED}"),
    Fact(f32(331, 37), "activation", "rnn", SAVED, "net|RNN", "tanh"),
    Fact(f32(331, 37), "temporary", "rnn", f"{GRADIENT}|{UNNAMED}", "net|RNN", "add|mm|backward"),
    Fact(f32(17, 331, 37), "activation", "rnn", f"{var('output')}|{SAVED}", "net|RNN", "stack|cat|add"),
    Fact(f32(17, 331, 37), "temporary", "rnn", f"{UNNAMED}|{GRADIENT}", "net|RNN", "add|mm|backward"),
    Fact(f32(17, 331, 37), "temporary", "rnn loss", GRADIENT, op="div|pow|mul|expand"),
)
def recurrent_network():
    net = nn.RNN(IN, 37)
    with memwatch.profile() as prof:
        text = torch.randn(17, 331, IN)  # peak: text
        output, _ = net(text)  # peak: rnn
        output.pow(2).mean().backward()  # peak: rnn loss
    return Ran(prof, {"net": net})


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.doubled = x * factor  # peak: on ctx
        ctx.save_for_backward(x)
        return ctx.doubled + 1  # peak: from function

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.doubled + x, None  # peak: function backward


@pattern(
    Fact(f32(ROWS, 101), "activation|input|held", "function input", f"{var('x')}|{SAVED}", op="randn"),
    Fact(f32(ROWS, 101), "activation|temporary", "on ctx", r"\.doubled|ctx", op="mul.Tensor"),
    Fact(f32(ROWS, 101), "activation", "from function", f"{var('y')}|{SAVED}", op="add"),
    Fact(f32(ROWS, 101), "temporary", "function loss", GRADIENT, op="div|pow|mul|expand"),
)
def function_that_keeps_on_ctx():
    with memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(ROWS, 101, requires_grad=True)  # peak: function input
            y = Scale.apply(x, 2.0)  # peak: call
            y.pow(2).mean().backward()  # peak: function loss
            del x, y
    return Ran(prof)


@pattern(
    Fact(f32(ROWS, HIDDEN), "activation", "twice", SAVED, "1", "tanh.default"),
    Fact(f32(ROWS, HIDDEN), "temporary", "twice", GRADIENT, "[12]", "mm|tanh_backward"),
    Fact(f32(ROWS, HIDDEN), "temporary", "twice", f"{UNNAMED}|{RESULT}", "0", "addmm"),
    Fact(f32(ROWS, OUT), "activation", "twice", f"{SAVED}|{var('y')}", "2", "addmm"),
    Fact(f32(ROWS, OUT), "temporary", "twice loss", f"{GRADIENT}|{UNNAMED}", op="div|pow|mul|sgn|abs|expand"),
    Fact(f32(ROWS, IN), "input", "twice batch", f"{SAVED}|{var('x')}"),
)
def backward_twice_with_retained_graph():
    net = mlp()
    with memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(ROWS, IN)  # peak: twice batch
            y = net(x)  # peak: twice
            y.pow(2).mean().backward(retain_graph=True)  # peak: twice loss
            y.abs().mean().backward()  # peak: twice loss
            net.zero_grad()
            del x, y
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(16, 3, 71, 71), "input", "perturbed|", f"{var('image')}|{SAVED}", op="add|^$"),
    Fact(f32(16, 3, 71, 71), "temporary", "perturbed", f"{UNNAMED}|{RESULT}", op="sign|mul"),
    Fact(
        f32(16, 3, 71, 71),
        "temporary",
        "forward attack",
        f"{var('grad')}|{RESULT}|{GRADIENT}",
        "net|Conv2d",
        "convolution_backward",
    ),
    Fact(f32(16, 5, 69, 69), "activation", "forward attack", SAVED, "net|Conv2d", "convolution.default"),
    Fact(f32(16, 5, 69, 69), "temporary", "forward attack", f"{GRADIENT}|{UNNAMED}", op="pow|mul|div|expand"),
)
def gradient_of_the_input():
    net = nn.Conv2d(3, 5, 3)
    image = torch.rand(16, 3, 71, 71)
    with memwatch.profile() as prof:
        for _ in range(3):
            image = image.detach().requires_grad_()
            loss = net(image).pow(2).mean()  # peak: forward attack
            (grad,) = torch.autograd.grad(loss, image)  # peak: attack
            image = image + 0.01 * grad.sign()  # peak: perturbed
            del loss, grad
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(7 * 600, 53), "activation", "looked up", SAVED, "table|Embedding", "embedding"),
    Fact(
        f32(7 * 600, 53),
        "temporary",
        "looked up",
        f"{GRADIENT}|{UNNAMED}|{var('grads')}",
        op="mul|pow|div|expand",
    ),
    Fact(f32(7 * 600, 53), "gradient", "looked up", GRAD, "table|Embedding"),
    Fact(
        2 * f32(7 * 600), "gradient|input", "looked up|", f"grad|{var('tokens')}|{SAVED}", "table|Embedding"
    ),
)
def sparse_embedding_gradients():
    table = nn.Embedding(3001, 53, sparse=True)
    tokens = torch.randint(3001, (7, 600))
    optimizer = torch.optim.SparseAdam(table.parameters())
    with memwatch.profile() as prof:
        for _ in range(2):
            table(tokens).pow(2).mean().backward()  # peak: looked up
            optimizer.step()
            optimizer.zero_grad()
    return Ran(prof, {"table": table})


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(1009, 48), nn.Linear(48, 1009, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))  # peak: tied


@pattern(
    Fact(f32(150, 1009), "temporary|activation", "tied", f"{UNNAMED}|{SAVED}|{RESULT}", "head", "mm"),
    Fact(f32(150, 1009), "activation", "tied loss", SAVED, op="log_softmax.default"),
    Fact(f32(150, 1009), "temporary", "tied loss", GRADIENT, op="backward"),
    Fact(f32(1009, 48), "temporary", "tied", GRADIENT, "head|embed"),
)
def tied_weights():
    net, tokens = Tied(), torch.randint(1009, (150,))
    with memwatch.profile() as prof:
        for _ in range(2):
            functional.cross_entropy(net(tokens), tokens).backward()  # peak: tied loss
            net.zero_grad()
    return Ran(prof, {"net": net})


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(IN, 3)
        self.experts = nn.ModuleList(nn.Linear(IN, 151) for _ in range(3))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        outputs = torch.stack([expert(x) for expert in self.experts], -1)  # peak: experts
        return (outputs * weights[:, None]).sum(-1)  # peak: mixed


@pattern(
    Fact(f32(300, 151), "temporary", "experts", f"{UNNAMED}|{RESULT}", r"experts\.[012]", "addmm"),
    Fact(f32(300, 151), "activation", "mixed", SAVED, "net|Experts", "sum"),
    Fact(f32(300, 151), "temporary", "experts loss", GRADIENT, op="pow|mul|div|expand"),
    Fact(f32(300, 151, 3), "activation", "experts", f"{SAVED}|{var('outputs')}", "net|Experts", "stack|cat"),
    Fact(f32(300, 151, 3), "temporary", "mixed", f"{GRADIENT}|{UNNAMED}", "net|Experts", "mul|expand"),
    Fact(f32(300, IN), "input", "routed", f"{SAVED}|{var('x')}"),
)
def mixture_of_experts():
    net = Experts()
    with memwatch.profile() as prof:
        for _ in range(2):
            x = torch.randn(300, IN)  # peak: routed
            net(x).pow(2).mean().backward()  # peak: experts loss
            net.zero_grad()
            del x
    return Ran(prof, {"net": net})


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(67, 307, bias=False)

    def forward(self, x):
        h = self.up(x)  # peak: whole rows
        first = h[:7]  # peak: first rows
        noise = torch.rand(7, 307)  # peak: noise of rows
        return first * noise  # peak: noisy rows


@pattern(
    Fact(f32(89, 307), "temporary|activation", "whole rows", f"{SAVED}|{UNNAMED}|{GRADIENT}", "up", "mm"),
    Fact(
        f32(89, 307),
        "temporary",
        "first rows",
        f"{UNNAMED}|{GRADIENT}",
        "net|Rows",
        "slice_backward",
    ),
    Fact(f32(7, 307), "activation", "noise of rows", SAVED, "net|Rows", "rand"),
    Fact(
        f32(7, 307), "temporary|activation", "noisy rows", f"{SAVED}|{UNNAMED}|{GRADIENT}", "net|Rows", "mul"
    ),
    Fact(f32(7, 307), "temporary|activation", "backward of rows", f"{SAVED}|{UNNAMED}|{GRADIENT}"),
    Fact(f32(307, 67), "gradient|temporary", "whole rows", f"{GRAD}|{GRADIENT}", "up", "mm"),
    Fact(f32(89, 67), "input|held|activation", "", f"{SAVED}|{var('x')}", "", "^$"),
)
def view_before_an_op_without_a_node():
    net, x = Rows(), torch.randn(89, 67)
    with memwatch.profile() as prof:
        net(x).exp().sum().backward()  # peak: backward of rows
    return Ran(prof, {"net": net})


@pattern(
    Fact(f32(97, 311), "temporary", "late backward", f"{UNNAMED}|{GRADIENT}"),
    Fact(f32(97, 311), "activation|input|held", "", f"{SAVED}|not seen|{CPP}", "", "^$"),
    Fact(f32(17, 29), "temporary|held", "unrelated", var("unrelated")),
    Fact(f32(311, 67), "gradient|temporary", "late backward", f"{GRAD}|{GRADIENT}", ".*"),
)
def graph_that_was_made_before():
    net = nn.Linear(67, 311, bias=False)
    loss = net(torch.randn(97, 67)).pow(2).mean()
    with memwatch.profile() as prof:
        unrelated = torch.rand(17, 29)  # peak: unrelated
        loss.backward()  # peak: late backward
        del unrelated
    return Ran(prof, {"net": net})
