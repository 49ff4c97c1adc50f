"""Real ranks: each has a capture of its own, with the peak that its allocator counts."""

from __future__ import annotations

from pathlib import Path

import memwatch

RANKS = Path(__file__).with_name("gloo_ranks.py")


def test_two_gloo_ranks(fresh_python, tmp_path):
    """DDP and FSDP2: each rank's peak is its allocator's, rank 0 gathers both, and the files merge to the same."""
    done = fresh_python(
        "import runpy, signal, sys; signal.alarm(250); sys.path.insert(0, sys.argv[2]); "
        "runpy.run_path(sys.argv[3], run_name='__main__')",
        *(str(tmp_path), str(RANKS.parents[1]), str(RANKS)),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in ("ddp", "fsdp2"):
        ranks = memwatch.merge(sorted(tmp_path.glob(f"{name}.*.memwatch")))
        assert ranks.notes == []
        assert ranks.worst == "rank 1"
        assert (ranks.ranks["communication_bytes"] > 0).all()
