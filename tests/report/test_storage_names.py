"""Names of memory without a role: the op, the module and the line that made it, in the words of users."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch
from memwatch.words.storages import made_name, role_name, short_op


@pytest.mark.parametrize(
    ("op_name", "short"),
    [
        ("aten.addmm.default", "addmm"),
        ("aten.mul.Tensor", "mul"),
        ("c10d.allreduce_.default", "c10d.allreduce_"),
        ("a compiled call", "a compiled call"),
    ],
)
def test_ops_of_torch_itself_go_by_their_bare_name(op_name, short):
    """The namespace `aten` and the overload say nothing to a user; other namespaces do."""
    assert short_op(op_name) == short


def test_what_is_not_known_is_left_out():
    """The name has no module, place or op that was not recorded."""
    assert made_name("aten.mul.Tensor", "", "", is_workspace=False) == "mul"
    assert made_name("aten.mul.Tensor", "0", "", is_workspace=True) == "workspace of mul in `0`"
    assert made_name("", "", "train.py:1", is_workspace=False) == "train.py:1"
    assert made_name("", "", "", is_workspace=True) == ""


@pytest.mark.parametrize(
    ("role", "recorded", "told"),
    [
        ("parameter", "head.weight", "head.weight"),
        ("gradient", "head.weight", "`head.weight` .grad"),
        ("optimizer state", "adamw.exp_avg[qkv.weight]", "AdamW `exp_avg` of `qkv.weight`"),
        ("optimizer state", "lion.momentum[qkv.weight]", "lion `momentum` of `qkv.weight`"),
        ("unsharded parameter", "layers.3.weight", "all-gathered `layers.3.weight`"),
        ("unsharded gradient", "layers.3.weight", "`layers.3.weight` .grad"),
        ("input", "input of Sequential", "input of Sequential"),
    ],
)
def test_what_is_in_a_role_is_called_as_people_call_it(role, recorded, told):
    """A gradient is a parameter's `.grad`, a state its optimizer's, a whole parameter of FSDP all-gathered."""
    assert role_name(role, recorded) == told


def test_names_tell_who_made_it_and_for_whom():
    """A tensor that code outside its module reads is an output.

    A tensor saved inside is named after the op that saved it.
    """

    class Squares(nn.Module):
        def forward(self, x):
            return (x.sin() * 2).square().sum()

    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), Squares())
    x = torch.randn(2, 3, 16, 16)
    with memwatch.profile() as prof:
        y = model(x)
        z = y + 1
    names = set(prof.storages["name"])
    assert {"0.weight", "output of `0`", "output of `1`", "output of `2`"} <= names
    assert "saved by pow in `2`" in names
    assert any(name.startswith("workspace of convolution in `0` at ") for name in names)
    outputs = prof.storages[prof.storages["name"] == "output of `0`"]
    assert set(outputs["op_name"]) == {"aten.convolution.default"}
    del y, z


def test_names_claim_no_more_than_was_seen():
    """A tensor that only its own module has read is named after its op, module and line."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    with memwatch.profile() as prof, torch.no_grad():
        y = model(torch.ones(8, 64))
    names = prof.storages["name"].tolist()
    assert "output of `0`" in names
    assert any(name.startswith("gelu in `1` at test_storage_names.py:") for name in names)
    del y


def test_memory_from_before_the_block_has_the_name_of_the_variable_that_holds_it():
    """No op of the block made it. Memory that the block made keeps the name of its op."""

    def lookup(table, index):
        return table[index] * 2

    data = torch.arange(200_000)
    with memwatch.profile() as prof:
        lookup(data, torch.randint(200_000, (100_000,)))
    peak = prof.at_peak
    (older,) = peak["name"][peak["origin"] == "baseline"]
    assert older.startswith(("`table`, argument of `lookup`", "`data`, local variable of "))
    made = peak["name"][peak["origin"] != "baseline"]
    assert len(made)
    assert not made.str.contains("`table`|`data`").any()
