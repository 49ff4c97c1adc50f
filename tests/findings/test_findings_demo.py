"""In the demo every byte at the peak has a holder, and saved tensors are reported by module and op."""

from __future__ import annotations

import importlib.util
import pathlib

import pytest
import torch

import memwatch

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "gpt.py"


@pytest.fixture(scope="module")
def profiled():
    """Train the demo's model for three steps, as examples/gpt.py does, on a text of its own."""
    spec = importlib.util.spec_from_file_location("example_gpt", EXAMPLE)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    torch.manual_seed(0)
    model = demo.GPT(64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.randint(64, (4096,))
    with memwatch.profile() as prof:
        for _ in range(3):
            demo.train_step(model, optimizer, data)
            prof.step()
    return prof


def test_every_byte_of_the_demos_peak_has_a_holder(profiled):
    """Every row of at_peak has a holder, and C++ alone holds almost nothing."""
    peak = profiled.at_peak
    assert (peak["holder"] != "").all()
    assert set(peak["holder_kind"]) >= {"autograd node", "module parameter", "optimizer state"}
    assert "unknown" not in set(peak["holder_kind"])
    kinds = peak.groupby("holder_kind")["nbytes"].sum()
    assert sum(kinds.get(kind, 0) for kind in ("C++ only", "not seen", "not looked for")) < 0.05 * kinds.sum()


def test_the_demos_saved_tensors_are_told_by_module_and_op(profiled):
    """Most of the peak is saved for backward; each piece names the op, and the module where one ran."""
    saved = profiled.saved[profiled.saved["at_peak"]]
    assert (saved["op_name"] != "").all()
    assert {"blocks.0.mlp.1", "blocks.3.attention.qkv", "norm"} <= set(saved["module"])
    peak = profiled.at_peak
    kept = peak[peak["holder_kind"] == "autograd node"]["nbytes"].sum()
    assert kept > 0.5 * peak["nbytes"].sum()
    assert "Kept only for backward" in profiled.summary(color=False)


def test_the_demo_is_plain_training(profiled):
    """Its loop has no findings but such as name a line of the demo itself."""
    assert all(str(EXAMPLE) in finding.site or not finding.site for finding in profiled.findings)
    assert not {finding.kind for finding in profiled.findings} - {"gradient"}
