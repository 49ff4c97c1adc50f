"""The words where memory ran out."""

from __future__ import annotations

from typing import Final

LIVE: Final = "memwatch: {nbytes} were live on {device} when {what}{asked}"
NOTHING: Final = "memwatch: nothing of this block was live on the device when {what}{asked}"
RAN_OUT: Final = "memory ran out"
LEFT: Final = "this error left the block"
IN_WORKER: Final = (
    "memwatch: memory ran out in a worker, another process or thread{asked}; {nbytes} were live on {device} here "
    "when this error left the block"
)
ASKED_IN_WORKER: Final = ", which asked for {nbytes}"
ABOVE_LIMIT: Final = "they passed the limit"
ASKED: Final = ", and the program requested {nbytes} more"
FAILED: Final = "in {op}{place}"
AT: Final = " at {place}"
BREAKDOWN: Final = {"by category:": "category", "by holder:": "holder_kind", "by line:": "line"}
"""The parts of the breakdown, each with the column that it is by."""
ROW: Final = "  {nbytes:>10}  {what}"
REST: Final = "  {nbytes:>10}  {count:,} more"
OF_KIND: Final = "{kind}, most of it: {holder}"
FINDINGS: Final = "changes that would have left room:"
FINDING: Final = "  {finding}"
NO_FINDING: Final = "memwatch found no change in the recorded part that would have left room"
WROTE: Final = "written: {file}"
NOT_TOLD: Final = "memwatch: memory ran out, and memwatch could not list the live memory: {why}"
NOT_ENDED: Final = "memwatch: the block has no profile, because ending the recording failed: {why}"
