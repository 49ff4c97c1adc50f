"""Verbs for AI assistants. Each is a class: its docstring is the help of the verb."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from memwatch.cli.common import add_device, emit, read
from memwatch.errors import MemwatchError

if TYPE_CHECKING:
    import argparse


class Mcp:
    """Serve a capture to an assistant, by the Model Context Protocol over standard input and output.

    The tools are read-only: summary, live_set, findings, ways, holders and diff. Nothing is sent anywhere but to
    the program that started the server. It needs the package mcp: pip install "memwatch[mcp]".

        memwatch mcp train.4242.memwatch
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""
        parser.add_argument("capture", type=Path, help="a file that `memwatch run` wrote")
        add_device(parser)

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Serve until standard input ends; return 0."""
        reading = read(options.capture, options.device)
        try:
            from memwatch.cli.mcp_tools import server
        except ImportError as error:
            raise MemwatchError(
                f'`memwatch mcp` needs the package mcp, version 2 or newer ({error}): pip install "memwatch[mcp]"'
            ) from error
        server(reading).run("stdio")
        return 0


_GUIDE: Final = Path(__file__).with_name("skill.md")


class Skill:
    """Print a guide for AI assistants: from a symptom to the command, what to read, and the fix.

    The guide is Markdown in the form of a skill, with a name and a description at its head. Save it where your
    assistant looks for skills. `memwatch mcp` lets an assistant ask about a capture.

        memwatch skill > SKILL.md
    """

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb."""

    @staticmethod
    def execute(options: argparse.Namespace) -> int:
        """Print the guide; return 0."""
        emit(_GUIDE.read_text(encoding="utf-8"))
        return 0
