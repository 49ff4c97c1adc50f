"""memwatch: what the peak of a PyTorch program is made of, who holds it, and how low it could be."""

from __future__ import annotations

__version__ = "0.1.0"
