"""The versions of torch with which memwatch records, and its message for other versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import memwatch
from memwatch._torch.lookup import FIRST, LAST, require_known_torch

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0+cu130", "3.0.0a0", "1.13.1", "unknown"])
def test_an_unknown_torch_is_refused_in_one_sentence(version, monkeypatch):
    """With any other torch memwatch can be imported; to record is refused, with the next step."""
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(memwatch.MemwatchError) as refused:
        memwatch.profile()
    text = str(refused.value)
    assert version in text
    assert "2.11 to 2.15" in text
    assert "\n" not in text


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0a0+git12ab", "2.15.0+cu130", "2.15.1"])
def test_every_build_of_a_known_version_is_taken(version, monkeypatch):
    """Local versions, patch releases and builds from source are of their version."""
    monkeypatch.setattr(torch, "__version__", version)
    require_known_torch()


def test_the_project_requires_what_is_known():
    """An installer takes no torch that a block would refuse."""
    (first, last) = re.findall(r'"torch>=([\d.]+),<([\d.]+)"', (_ROOT / "pyproject.toml").read_text())[0]
    assert first == ".".join(map(str, FIRST))
    assert last == f"{LAST[0]}.{LAST[1] + 1}"
