"""DTensor, FSDP2, DDP, collectives and pipelines, with a fake process group and with two gloo ranks."""

from __future__ import annotations

import pathlib
import subprocess
import sys

RANKS = pathlib.Path(__file__).with_name("compat_ranks.py")


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(RANKS), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_fake_process_group():
    """Rank 0 of four imagined ranks: DTensor, tensor parallel, FSDP2 with and without mixed precision."""
    rank = _start("fake")
    output = rank.communicate(timeout=200)[0]
    assert rank.returncode == 0, output[-3000:]


def test_two_gloo_ranks(tmp_path):
    """Two real ranks: DTensor, tensor parallel, FSDP2, DDP, collectives, GPipe and 1F1B schedules."""
    ranks = [_start(str(rank), "2", str(tmp_path / "rendezvous")) for rank in range(2)]
    outputs = [rank.communicate(timeout=250)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(output[-3000:] for output in outputs)
