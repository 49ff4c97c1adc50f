"""The names and the memory of modules: several models, parents that are never called, models that never run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import memwatch

WEIGHT_BYTES, BIAS_BYTES = 8 * 8 * 4, 8 * 4


def stack():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def train(step, *optimizers):
    for _ in range(2):
        step().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture(autouse=True)
def others():
    """Return the modules of models that other tests left alive in this process."""
    with memwatch.profile() as prof:
        pass
    OTHERS.clear()
    OTHERS.update(prof.modules.index)
    yield
    OTHERS.clear()


OTHERS = set()


def own_modules(prof):
    return prof.modules.drop(index=OTHERS)


def parameter_bytes(prof):
    bytes_of = own_modules(prof)["parameter_bytes"]
    return bytes_of[bytes_of > 0].to_dict()


def owners(prof, category):
    return set(prof.storages.loc[prof.storages["category"] == category, "module"]) - OTHERS


class Adversaries:
    """Two models in the attributes of a plain object, which has a step of its own."""

    def __init__(self):
        self.gen, self.disc = stack(), stack()

    def step(self):
        return self.disc(self.gen(torch.randn(4, 8))).sum()


class Lightning(nn.Module):
    """A module whose `forward` is never called: a trainer calls `training_step`."""

    def __init__(self):
        super().__init__()
        self.net = stack()
        self.idle = nn.Linear(8, 8)

    def training_step(self, x):
        return self.net(x).sum()


class Mixture(nn.Module):
    """Hold experts in a plain list, which torch ignores, and in a ParameterList, which is never called."""

    def __init__(self):
        super().__init__()
        self.experts = [nn.Linear(8, 8), nn.Linear(8, 8)]
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(8))])

    def forward(self, x):
        return nn.GELU()(sum(expert(x) for expert in self.experts) * self.scales[0])


def test_two_models_are_told_apart_by_their_variables():
    """Modules, parameters, gradients and states of each model begin with its variable, whenever it was made."""
    for made_before in (True, False):
        generator, discriminator = (stack(), stack()) if made_before else (None, None)
        with memwatch.profile() as prof:
            if not made_before:
                generator, discriminator = stack(), stack()
            both = [*generator.parameters(), *discriminator.parameters()]
            optimizer = torch.optim.Adam(both)
            train(lambda g=generator, d=discriminator: d(g(torch.randn(4, 8))).sum(), optimizer)
        each = WEIGHT_BYTES + BIAS_BYTES
        names = {"generator.0", "generator.2", "discriminator.0", "discriminator.2"}
        assert parameter_bytes(prof) == dict.fromkeys(names, each)
        for category in ("parameter", "gradient", "optimizer state"):
            assert owners(prof, category) >= names
        named = set(prof.storages["name"])
        assert {
            "generator.0.weight",
            "`discriminator.2.bias` .grad",
            "Adam `exp_avg` of `generator.2.weight`",
        } <= named
        owned = prof.storages[prof.storages["category"].isin(["parameter", "gradient", "optimizer state"])]
        of_models = owned[owned["name"].str.contains("generator.|discriminator.")]
        assert set(of_models["module"]) == names
        assert set(prof.ops["module"]) <= {
            *names,
            "generator.1",
            "discriminator.1",
            "generator",
            "discriminator",
            "",
        }


def test_models_in_attributes_are_named_by_the_way_to_them():
    """The caller would write `pair.gen`. Both trees have their own bytes."""
    with memwatch.profile() as prof:
        pair = Adversaries()
        train(pair.step)
    modules = own_modules(prof)
    roots = modules[modules["parent"] == ""]
    assert list(roots.index) == ["pair.gen", "pair.disc"]
    assert (roots["inclusive_bytes"] > 0).all()


def test_models_that_only_a_closure_has_are_named_by_its_variables():
    """The caller has only a function that was made with its models. The names come from the function's code."""

    def make():
        pair = Adversaries()
        return lambda: train(pair.step)

    run = make()
    with memwatch.profile() as prof:
        run()
    modules = own_modules(prof)
    assert list(modules[modules["parent"] == ""].index) == ["pair.gen", "pair.disc"]


def test_a_parent_that_is_never_called_is_the_parent():
    """The children of one model keep torch's own names, and its parameters that are never used are its own."""
    with memwatch.profile() as prof:
        model = Lightning()
        train(lambda: model.training_step(torch.randn(4, 8)), torch.optim.SGD(model.net.parameters(), lr=0.1))
    assert prof.modules.loc["model", ["class_name", "calls", "parent"]].tolist() == ["Lightning", 0, ""]
    assert prof.modules.loc["net", "parent"] == "model"
    assert set(parameter_bytes(prof)) == {"net.0", "net.2", "idle"}
    assert (
        prof.modules.loc["model", "inclusive_bytes"]
        == prof.at_peak.loc[~prof.at_peak["module"].isin({"", *OTHERS}), "nbytes"].sum()
    )


def test_a_copy_that_is_never_called_owns_its_parameters():
    """The averaged weights of a deep copy are parameters of that copy."""
    with memwatch.profile() as prof:
        model = stack()
        average = copy.deepcopy(model)
        train(lambda: model(torch.randn(4, 8)).sum(), torch.optim.SGD(model.parameters(), lr=0.1))
        with torch.no_grad():
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.1)
    names = {"model.0", "model.2", "average.0", "average.2"}
    assert parameter_bytes(prof) == dict.fromkeys(names, WEIGHT_BYTES + BIAS_BYTES)


def test_what_a_plain_list_holds_belongs_to_its_module():
    """Experts in a list have its name; a module made in passing is its caller's, however often it is made anew."""
    with memwatch.profile() as prof:
        model = Mixture()
        train(lambda: model(torch.randn(4, 8)).sum())
    modules = own_modules(prof)
    assert set(modules.index) == {"model", "scales", "experts[0]", "experts[1]", "GELU"}
    assert set(modules.loc[modules["parent"] == "model"].index) == set(modules.index) - {"model"}
    assert modules.loc["GELU", "calls"] == 2
    assert parameter_bytes(prof)["scales"] == BIAS_BYTES


def test_a_parent_that_no_variable_leads_to_is_found():
    """The parent of the called module lies deep inside other objects. A search along holders finds it."""
    with memwatch.profile() as prof:
        deep = {"a": {"b": {"c": {"d": {"e": Lightning()}}}}}
        deep["a"]["b"]["c"]["d"]["e"].net(torch.randn(4, 8)).sum().backward()
    assert prof.modules.loc["net", ["class_name", "parent"]].tolist() == ["Sequential", "Lightning"]


def test_an_item_of_a_list_is_named_as_an_item():
    """The variable of a running loop names another model in its next pass."""
    with memwatch.profile() as prof:
        nets = {"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)}
        for net in nets.values():
            net(torch.randn(4, 8))
    assert list(own_modules(prof).index) == ["nets['first']", "nets['second']"]


def test_a_wrapper_made_later_is_the_parent():
    """A model that ran alone before it was wrapped is one tree with its wrapper, not a second model."""
    with memwatch.profile() as prof:
        inner = stack()
        inner(torch.randn(4, 8))
        wrapped = nn.Sequential(inner, nn.Tanh())
        wrapped(torch.randn(4, 8))
    assert prof.modules.loc["0", ["parent", "calls"]].tolist() == ["wrapped", 2]
    assert set(parameter_bytes(prof)) == {"0.0", "0.2"}


def test_parameters_that_are_converted_stay_parameters():
    """After `half()` the same parameter lies in other memory, and that is the module's too."""
    with memwatch.profile() as prof:
        model = stack()
        model(torch.randn(4, 8))
        model.half()
    assert parameter_bytes(prof) == dict.fromkeys(["0", "2"], (WEIGHT_BYTES + BIAS_BYTES) * 3 // 2)


def test_a_parameter_of_no_module_has_none():
    """Its variable names it, or else its place in the optimizer."""
    with memwatch.profile() as prof:
        weight = nn.Parameter(torch.randn(8, 8))
        train(lambda: (torch.randn(4, 8) @ weight).sum(), torch.optim.SGD([weight], lr=0.1))
    assert owners(prof, "parameter") == owners(prof, "gradient") == {""}
    assert "weight" in set(prof.storages["name"])

    optimizer = torch.optim.SGD([nn.Parameter(torch.randn(8, 8))], lr=0.1)
    with memwatch.profile() as prof:
        train(lambda: (torch.randn(4, 8) @ optimizer.param_groups[0]["params"][0]).sum(), optimizer)
    assert owners(prof, "parameter") == {""}
    assert "group0.param0" in set(prof.storages["name"])
