"""Captures: the recorded tables, in memory or in one file on disk."""

from __future__ import annotations

from memwatch.capture.columns import Capture
from memwatch.capture.file import load, save
from memwatch.errors import CaptureError

__all__ = ["Capture", "CaptureError", "load", "save"]
