"""What all tests share: pytest's own testing fixture."""

from __future__ import annotations

pytest_plugins = ["pytester"]
