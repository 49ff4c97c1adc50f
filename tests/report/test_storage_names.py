"""What memory is called that has no role: the op, the module and the line that made it, as people say them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memwatch
from memwatch.words.storages import made_name, short_op


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
    """Nothing is said of a module, a place or an op that was not seen."""
    assert made_name("aten.mul.Tensor", "", "", is_workspace=False) == "mul"
    assert made_name("aten.mul.Tensor", "0", "", is_workspace=True) == "workspace of mul in `0`"
    assert made_name("", "", "train.py:1", is_workspace=False) == "train.py:1"
    assert made_name("", "", "", is_workspace=True) == ""


def test_names_tell_op_module_and_line():
    """An activation is called after its op, the module that it ran in, and the line; a workspace after its op."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU())
    x = torch.randn(2, 3, 16, 16)
    with memwatch.profile() as prof:
        y = model(x)
    names = prof.storages.set_index("category")["name"]
    assert any(
        name.startswith("convolution in `0` at test_storage_names.py:") for name in names[["activation"]]
    )
    assert any(name.startswith("workspace of convolution in `0` at ") for name in names[["workspace"]])
    assert any(name.startswith("gelu in `1` at test_storage_names.py:") for name in prof.storages["name"])
    del y
