"""Hooks of the memwatch pytest plugin."""

from __future__ import annotations
