"""The graph generators of the reports are the fixtures of these tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "reports"))
