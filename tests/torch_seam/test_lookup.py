"""How a name of torch is looked up."""

from __future__ import annotations

import sys

import torch

from memwatch._torch import lookup


def test_a_module_whose_import_fails_in_any_way_is_absent(tmp_path, monkeypatch):
    """A module of torch may raise anything where a library that it needs is missing or old."""
    (tmp_path / "broken.py").write_text("raise OSError('no such library')")
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    assert lookup.find("torch.broken.name") is lookup.ABSENT
    assert "torch.broken" not in sys.modules
