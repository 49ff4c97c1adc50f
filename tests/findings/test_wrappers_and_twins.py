"""A wrapper of torch adds no part to a module's name.

The holder of one op's result is not inferred from another op's.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.func import functional_call, stack_module_state, vmap

import memwatch

WIDTH, ROWS = 128, 2048


class Blocks(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.blocks = nn.ModuleList(wrap(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Wrapper(nn.Module):
    """A wrapper of the program's own. The name of the wrapped module is a part of the program's names."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


class WithSibling(nn.Module):
    """The child has a name that torch's wrappers use, but it is not the only one."""

    def __init__(self, module):
        super().__init__()
        self._orig_mod, self.after = module, nn.Tanh()

    def forward(self, x):
        return self.after(self._orig_mod(x))


def compiled(module):
    return torch.compile(module, backend="eager")


def recorded(net):
    with memwatch.profile() as prof:
        net(torch.ones(ROWS, WIDTH)).sum().backward()
    return prof


@pytest.mark.parametrize("wrap", [checkpoint_wrapper, compiled, nn.DataParallel])
def test_a_wrapper_of_torch_adds_nothing_to_the_names_of_the_programs_modules(wrap):
    prof = recorded(Blocks(wrap))
    # other tests leave modules too
    names = {name for name in prof.modules.index if name.startswith("blocks")}
    assert {"blocks.0", "blocks.1.0", "blocks.2.1"} <= names
    assert prof.modules.index.is_unique
    assert not any("_wrapped_module" in name or "_orig_mod" in name or "module" in name for name in names)
    assert prof.modules.loc["blocks.0", "class_name"] == "Sequential"
    told = prof.at_peak["name"].tolist() + prof.at_peak["holder"].tolist() + prof.at_peak["module"].tolist()
    told = [text for text in told if "blocks" in text]
    assert not any("_wrapped_module" in text or "_orig_mod" in text or ".module" in text for text in told)
    assert "blocks.0.0.weight" in prof.at_peak["name"].tolist()


def test_a_wrapped_model_has_the_names_of_the_model():
    net = compiled(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()))
    prof = recorded(net)
    assert {"0", "1"} <= set(prof.modules.index)
    assert "0.weight" in prof.at_peak["name"].tolist()


def test_a_wrapper_and_what_it_wraps_are_one_row_with_the_bytes_of_both():
    plain, wrapped = recorded(Blocks(nn.Sequential)), recorded(Blocks(checkpoint_wrapper))
    assert wrapped.modules["parameter_bytes"].sum() == plain.modules["parameter_bytes"].sum()
    assert wrapped.modules.loc["blocks.0", "parameter_bytes"] == 0
    assert wrapped.modules.loc["blocks.0.0", "parameter_bytes"] == (WIDTH + 1) * WIDTH * 4
    of_net = wrapped.modules.filter(regex="^(net|blocks)", axis=0)  # other tests may have left modules alive
    assert of_net["own_bytes"].sum() == of_net.loc["net", "inclusive_bytes"] > 0


@pytest.mark.parametrize(("wrap", "child"), [(Wrapper, "module"), (WithSibling, "_orig_mod")])
def test_a_wrapper_of_the_programs_own_keeps_its_part_of_the_name(wrap, child):
    prof = recorded(Blocks(wrap))
    assert {"blocks.0", f"blocks.0.{child}", f"blocks.0.{child}.0"} <= set(prof.modules.index)
    assert f"blocks.0.{child}.0.weight" in prof.at_peak["name"].tolist()


def ensemble(layer_count, *, tanh):
    def made():
        pairs = [(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layer_count)]
        return nn.Sequential(*(layer for pair in pairs for layer in pair[: 1 + tanh]))

    parameters, _ = stack_module_state([made() for _ in range(3)])
    base = made().to("meta")
    return vmap(lambda values, x: functional_call(base, values, (x,)), (0, None)), {
        name: value.detach() for name, value in parameters.items()
    }


@pytest.mark.parametrize("layer_count", [2, 4])
@pytest.mark.parametrize("tanh", [False, True])
def test_what_another_op_of_the_line_made_does_not_tell_who_holds_a_result(layer_count, tanh):
    """`linear` under `vmap` is a `bmm` and an `add` on one line: the sum alone gets into variables."""
    run, parameters = ensemble(layer_count, tanh=tanh)
    x = torch.ones(ROWS, WIDTH)
    with memwatch.profile() as prof:
        for _ in range(3):
            y = run(parameters, x)
            prof.step()
    del y
    products = prof.at_peak[prof.at_peak["op_name"] == "aten.bmm.default"]
    assert len(products)
    assert not products["holder"].str.contains("argument of|variable of").any(), products["holder"].tolist()


def test_what_the_same_op_of_the_line_made_still_tells():
    """The twin of the test above: if one op makes all items of a list, the others are held as the seen ones are."""
    with memwatch.profile() as prof:
        kept = [torch.full((ROWS, WIDTH), 1.0) * number for number in range(8)]
        torch.stack(kept).sum()
    items = prof.at_peak[prof.at_peak["op_name"] == "aten.mul.Tensor"]
    assert len(items) == len(kept)
    assert items["holder"].str.contains("kept|value|list", regex=True).mean() > 0.8, items["holder"].tolist()


@pytest.mark.parametrize("trains", [False, True])
def test_what_a_forward_hook_puts_into_a_dictionary_is_held_by_the_dictionary(trains):
    net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    acts = {}

    def noting(name):
        def note(module, args, output):
            acts[name] = output.detach()

        return note

    for name, layer in net.named_children():
        layer.register_forward_hook(noting(name))
    x = torch.ones(ROWS, WIDTH)
    with memwatch.profile() as prof, torch.set_grad_enabled(trains):
        for _ in range(3):
            net(x).sum()
    names = [f"output of `{number}`" for number in range(3)]
    noted = prof.at_peak[prof.at_peak["name"].isin(names)]
    assert len(noted) >= len(names)
    told = noted["holder"]
    others = told.str.startswith("saved by") | told.str.startswith("the running op")
    assert (~others).sum() >= len(names)
    assert told[~others].str.contains("`acts`").all(), told.tolist()
