"""Print a guide for AI assistants: from a symptom to the command, what to read, and the fix.

The guide is Markdown in the form of a skill, with a name and a description at its head. Save it where your assistant
looks for skills. `memwatch mcp` lets an assistant ask about a capture.

    memwatch skill > SKILL.md
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.cli.common import emit

if TYPE_CHECKING:
    import argparse

_GUIDE: Final = Path(__file__).with_name("skill.md")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this verb."""


def execute(options: argparse.Namespace) -> int:
    """Print the guide; return 0."""
    emit(_GUIDE.read_text(encoding="utf-8"))
    return 0
