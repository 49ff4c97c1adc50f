"""Leaks as training programs make them."""

from __future__ import annotations

import torch
from leak_program import collect
from torch import nn
from torch.utils.data import Dataset

NET = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


def step():
    NET.zero_grad(set_to_none=True)
    loss = NET(torch.randn(8, 16)).pow(2).mean()
    loss.backward()
    return loss


LOSSES = []


def leak_loss_history():
    LOSSES.append(NET(torch.randn(8, 16)).pow(2).mean())


def clean_loss_history():
    LOSSES.append(NET(torch.randn(8, 16)).pow(2).mean().item())


class Meter:
    def __init__(self):
        self.total = torch.zeros(())


METER = Meter()


def leak_running_sum():
    METER.total = METER.total + NET(torch.randn(8, 16)).pow(2).mean()


def clean_running_sum():
    METER.total = METER.total.detach() + step().detach()


TOTAL = torch.zeros(())
WEIGHT = torch.randn(32, 32, requires_grad=True)


def leak_running_sum_in_place():
    TOTAL.add_(WEIGHT.exp().sum())


PLAIN = torch.zeros(())


def clean_running_sum_in_place():
    PLAIN.add_(WEIGHT.exp().sum().detach())


class Recorder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.activations = []

    def forward(self, x):
        return self.inner(x)


RECORDER = Recorder()
RECORDER.inner.register_forward_hook(lambda module, args, out: RECORDER.activations.append(out))
QUIET = Recorder()
QUIET.inner.register_forward_hook(lambda module, args, out: None)


def leak_forward_hook_collects():
    RECORDER(torch.randn(4, 16))


def clean_forward_hook_collects():
    QUIET(torch.randn(4, 16))


HOOKED = nn.Sequential(nn.Linear(16, 16))


def leak_hook_per_call():
    saved = []
    HOOKED[0].register_forward_hook(lambda module, args, out: saved.append(out.detach()))
    HOOKED(torch.randn(4, 16))


def clean_hook_per_call():
    saved = []
    handle = NET[2].register_forward_hook(lambda module, args, out: saved.append(out.detach()))
    try:
        NET(torch.randn(4, 16))
    finally:
        handle.remove()


def leak_module_hook_cycle():
    model = nn.Linear(16, 16)
    model.register_forward_hook(lambda module, args, out: model.weight and None)


def clean_module_hook_cycle():
    model = nn.Linear(16, 16)
    model.register_forward_hook(lambda module, args, out: None)


POINTS = nn.ParameterDict({"means": nn.Parameter(torch.randn(16, 4))})
SPLAT_OPTIMIZER = GROWING = None


def make_optimizers():
    """Make both on first use: torch imports its compiler then, and the heap that is searched grows by half."""
    global SPLAT_OPTIMIZER, GROWING  # noqa: PLW0603
    if GROWING is None:
        SPLAT_OPTIMIZER = torch.optim.Adam(POINTS.parameters(), foreach=False)
        GROWING = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


def densify(*, forget):
    make_optimizers()
    old = POINTS["means"]
    old.grad = torch.ones_like(old)
    SPLAT_OPTIMIZER.step()
    new = nn.Parameter(old.detach().clone())
    POINTS["means"] = new
    SPLAT_OPTIMIZER.param_groups[0]["params"][0] = new
    state = SPLAT_OPTIMIZER.state.pop(old) if forget else SPLAT_OPTIMIZER.state[old]
    SPLAT_OPTIMIZER.state[new] = {key: value.clone() for key, value in state.items()}


def leak_optimizer_state():
    densify(forget=False)


def clean_optimizer_state():
    densify(forget=True)


def leak_param_groups():
    make_optimizers()
    GROWING.add_param_group({"params": [nn.Parameter(torch.randn(32, 4))]})


def clean_param_groups():
    make_optimizers()
    del GROWING.param_groups[1:]
    GROWING.add_param_group({"params": [nn.Parameter(torch.randn(32, 4))]})


class Images(Dataset):
    def __init__(self, *, cache):
        self.cache = {} if cache else None

    def __getitem__(self, index):
        image = torch.randn(3, 8, 8)
        if self.cache is not None:
            self.cache[index] = image
        return image


CACHED, PLAIN_IMAGES = Images(cache=True), Images(cache=False)
INDEX = iter(range(10**9))


def leak_dataset_cache():
    CACHED[next(INDEX)]


def clean_dataset_cache():
    PLAIN_IMAGES[next(INDEX)]


NODES = []


def leak_kept_grad_fn():
    NODES.append(WEIGHT.exp().sum().grad_fn)


def clean_kept_grad_fn():
    NODES.append(WEIGHT.exp().sum().grad_fn.name())


EMBEDDINGS = {}


def leak_validation_outputs():
    with torch.no_grad():
        EMBEDDINGS.setdefault("val", []).append(NET[0](torch.randn(8, 16)))


def clean_validation_outputs():
    with torch.no_grad():
        EMBEDDINGS["val"] = [NET[0](torch.randn(8, 16))]


class Trainer:
    def __init__(self, model):
        self.model = model
        self.outputs = None
        model.trainer = self


def leak_trainer_cycle():
    Trainer(nn.Linear(32, 32))


def clean_trainer_cycle():
    trainer = Trainer(nn.Linear(32, 32))
    del trainer.model.trainer


def leak_parametrized_module():
    nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))


def clean_parametrized_module():
    nn.Linear(16, 16)


def leak_tree_flatten():
    tree = [torch.randn(16), [torch.randn(16)]]
    torch.utils._pytree.tree_flatten(tree, is_leaf=lambda node: node is tree and False)


def clean_tree_flatten():
    tree = [torch.randn(16), [torch.randn(16)]]
    torch.utils._pytree.tree_flatten(tree)


MODELS = nn.ModuleList()


def leak_module_list():
    MODELS.append(nn.Linear(8, 8))


def clean_module_list():
    MODELS.append(nn.Linear(8, 8))
    del MODELS[-1]


PROGRAMS = collect(
    globals(),
    [
        ("loss_history", "retained", ("global `LOSSES`",)),
        ("running_sum", "retained", ("global `METER`", "attribute .total of Meter")),
        ("running_sum_in_place", "retained", ("global `TOTAL`",)),
        ("forward_hook_collects", "retained", ("attribute .activations of Recorder",)),
        ("hook_per_call", "retained", ("._forward_hooks of", "closure cell `saved`")),
        ("module_hook_cycle", "cycle", ("closure cell `model`", "._forward_hooks")),
        ("optimizer_state", "retained", ("global `SPLAT_OPTIMIZER`", "attribute .state of Adam")),
        ("param_groups", "retained", ("global `GROWING`", "param_groups")),
        ("dataset_cache", "retained", ("global `CACHED`", "attribute .cache of Images")),
        ("kept_grad_fn", "retained", ("global `NODES`",)),
        ("validation_outputs", "retained", ("global `EMBEDDINGS`", "'val'")),
        ("trainer_cycle", "cycle", ("attribute .trainer of Linear",)),
        ("parametrized_module", "cycle", ("Linear",)),
        ("tree_flatten", "cycle", ("closure cell",)),
        ("module_list", "retained", ("global `MODELS`",)),
    ],
)
