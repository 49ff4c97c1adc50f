"""The tools that `memwatch mcp` serves: read-only questions about one capture.

The types of arguments and answers are read at run time, to describe the tools to clients.
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from memwatch._version import __version__
from memwatch.errors import MemwatchError
from memwatch.reading import Reading, compare_peaks, load, sites_at_peak
from memwatch.report.records import (
    difference_record,
    findings_record,
    holders_record,
    live_record,
    summary_record,
    ways_record,
)
from memwatch.report.records.schema import (
    DifferenceRecord,
    FindingRecord,
    HeldStorageRecord,
    LiveRecord,
    SummaryRecord,
    WayRecord,
)

_Arguments = ParamSpec("_Arguments")
_Record = TypeVar("_Record")

_INSTRUCTIONS = """Memory of a PyTorch program that memwatch recorded. Begin with `summary`. Sizes are in bytes.
A holder is the reference that keeps memory alive. `holder_evidence` is `seen` if memwatch found the
reference, `structure` if torch's own records name it, `inferred` if a rule names it, and `none` if it is unknown."""


def server(reading: Reading) -> MCPServer:
    """Return a server that answers questions about a reading; its tools change nothing.

    Args:
        reading: what a capture file holds, from `memwatch.load`.
    """
    tools = _Tools(reading)
    served = MCPServer("memwatch", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    for tool in (tools.summary, tools.live_set, tools.findings, tools.ways, tools.holders, tools.diff):
        annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        served.add_tool(_with_tool_errors(tool), annotations=annotations)
    return served


def _with_tool_errors(tool: Callable[_Arguments, _Record]) -> Callable[_Arguments, _Record]:
    """Return the tool with memwatch's errors raised as `ToolError`, whose text the client gets as an answer."""

    @functools.wraps(tool)
    def reporting(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Record:
        try:
            return tool(*args, **kwargs)
        except (MemwatchError, OSError) as error:
            raise ToolError(str(error)) from error

    return reporting


class _Tools:
    """One method for each tool. Clients read its docstring."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def _on(self, device: str) -> Reading:
        return self._reading.on(device) if device else self._reading

    def summary(self, rows: int = 8, device: str = "") -> SummaryRecord:
        """Describe the memory peak: categories, modules, lines, holders, largest storages, findings."""
        return summary_record(self._on(device), rows=rows)

    def live_set(self, event: int | None = None, rows: int = 20, device: str = "") -> LiveRecord:
        """List the largest storages that were alive just after an event of the timeline; by default at the peak."""
        return live_record(self._on(device), event, rows=rows)

    def findings(self, device: str = "") -> list[FindingRecord]:
        """List changes that would lower the peak, largest first: holder, place, advice, peak after the change.

        An empty answer means that no change is known that would lower it by 5 % or more.
        """
        return findings_record(self._on(device))

    def ways(self, device: str = "") -> list[WayRecord]:
        """List changes of the program whose peak was simulated, such as checkpoints, with the lines that make them.

        An empty answer means that no such change is known that would lower the peak by 5 % or more.
        """
        return ways_record(self._on(device))

    def holders(self, matching: str = "", rows: int = 20, device: str = "") -> list[HeldStorageRecord]:
        """List who holds the storages at the peak, filtered by a text in their name, module, line, op or holder.

        An empty answer means that no storage matches.
        """
        return holders_record(self._on(device), rows=rows, matching=matching)

    def diff(self, other: str, device: str = "") -> DifferenceRecord:
        """Compare this capture's peak with the peak of another capture file, the older one."""
        old = load(other)
        before = sites_at_peak(old.on(device) if device else old)
        return difference_record(compare_peaks(before, sites_at_peak(self._on(device))))
