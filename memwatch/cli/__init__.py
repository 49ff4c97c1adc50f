"""memwatch: find the memory peak of a PyTorch program, who holds it, and how low it could be.

Record a program, then look at the file it wrote:

    memwatch run train.py --epochs 1
    memwatch summary train.4242.memwatch
    memwatch report train.4242.memwatch
"""

from __future__ import annotations

from memwatch.cli.main import main

__all__ = ["main"]
