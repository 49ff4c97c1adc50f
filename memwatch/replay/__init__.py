"""Run a recorded program again: plan it, execute the plan on the real tensors, and prove the result."""

from __future__ import annotations
