"""Private names of torch are taken in `memwatch/_torch/` and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest
from private_names import private_attributes, private_names

_ROOT = Path(__file__).resolve().parents[2]
_SEAM = _ROOT / "memwatch" / "_torch"
_SOURCES = sorted({*_ROOT.glob("memwatch/**/*.py"), *_ROOT.glob("plugins/**/*.py")})


def test_only_the_seam_takes_private_names_of_torch():
    """No source outside the seam imports, reads or spells a private name of torch."""
    found = [
        f"{path.relative_to(_ROOT)}:{line}: {name}"
        for path in _SOURCES
        if not path.is_relative_to(_SEAM)
        for line, name in private_names(path.read_text())
    ]
    assert found == []


def test_the_seam_is_a_leaf():
    """The seam imports only itself, the errors, and the test for signal handlers."""
    imported = {
        line.strip()
        for path in _SEAM.glob("*.py")
        for line in path.read_text().splitlines()
        if line.strip().startswith(("from memwatch", "import memwatch"))
    }
    assert imported
    allowed = ("from memwatch._torch", "from memwatch.errors", "from memwatch.signal_handlers")
    strangers = [line for line in imported if not line.startswith(allowed)]
    assert strangers == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch._ops import OpOverload", "torch._ops.OpOverload"),
        ("from torch.nn.modules import _functions as f", "torch.nn.modules._functions"),
        ("import torch\ntorch._C._current_autograd_node()", "torch._C._current_autograd_node"),
        ("from torch import nn\nnn.Module._call_impl", "torch.nn.Module._call_impl"),
        ("import torch as t\nt.utils._pytree.tree_map", "torch.utils._pytree"),
        ("import torch\ngetattr(torch.nn.Module, '_call_impl')", "torch.nn.Module._call_impl"),
        ("tensor._version", "…._version"),
        ("a.b().untyped_storage()._cdata", "…._cdata"),
        ("class Mode:\n    def _should_skip_dynamo(cls): ...", "_should_skip_dynamo"),
        ("module.__dict__['_parameters']", "_parameters"),
        ("import sys\nsys.modules.get('torch._dynamo')", "torch._dynamo"),
    ],
)
def test_the_scan_finds(source, name):
    """Each way to take a private name is found: import, attribute, method that overrides, text."""
    assert name in [found for _, found in private_names(source)]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.ones(1).__dict__",
        "from torch.utils.checkpoint import checkpoint",
        '"""Speaks of torch._dynamo."""',
        "self._parameters",
        "import sys\nsys._getframe(1)",
    ],
)
def test_the_scan_passes(source):
    """Public names, dunders, attributes of our own classes, and prose do not count as private names of torch."""
    assert private_names(source) == []


def test_private_attributes_are_read_off_torch():
    """The scan knows every attribute that memwatch reads."""
    wanted = {
        "_version",
        "_cdata",
        "_schema",
        "_op",
        "_opname",
        "_sequence_nr",
        "_parameters",
        "_raw_saved_tensors",
    }
    assert wanted <= private_attributes()
