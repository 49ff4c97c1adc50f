"""DTensor, FSDP2, DDP, collectives and pipelines, with a fake process group and with two gloo ranks."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

RANKS = pathlib.Path(__file__).with_name("compat_ranks.py")


def _start(*arguments: str) -> subprocess.Popen[str]:
    paths = [str(RANKS.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, str(RANKS), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


def test_fake_process_group():
    """Rank 0 of four imagined ranks: DTensor, tensor parallel, FSDP2 with and without mixed precision."""
    rank = _start("fake")
    output = rank.communicate(timeout=200)[0]
    assert rank.returncode == 0, output[-3000:]


@pytest.mark.whole
def test_two_gloo_ranks(tmp_path):
    """Two real ranks: DTensor, tensor parallel, FSDP2, DDP, collectives, GPipe and 1F1B schedules."""
    ranks = _start("gloo", "2", str(tmp_path / "rendezvous"))
    output = ranks.communicate(timeout=250)[0]
    assert ranks.returncode == 0, output[-6000:]
