"""The words of the summary: its headings, and the meaning of its figures."""

from __future__ import annotations

from typing import Final

PEAK_IS_ENTRY_AND_INCREASE: Final = " = {entry} at the start + {increase} increase"
PEAK_IS_BEFORE_AND_WITHIN: Final = " = {before} from before the block + {within} made in it"
INCREASE_ELSEWHERE: Final = (
    "{entry} were alive at the start; the block itself added at most {increase} (peak increase)"
)
"""If the block frees memory from before it, the peak and the peak increase may be at two instants."""

HEADLINE: Final = (
    "The largest part of the peak is {category} ({share}). "
    "The line {line} made {line_share} of the peak, more than any other line."
)
HEADLINE_TWO_LINES: Final = (
    "The largest part of the peak is {category} ({share}). "
    "The lines {line} ({line_share}) and {second} ({second_share}) made more of the peak than any other line."
)
"""For a second line that made nearly as much."""
HEADLINE_HELD: Final = " {holder} keeps {nbytes} ({share} of the peak) in {storages}, across iterations."
"""For one variable that holds much. No finding is about it, because the program may need it later."""
HEADLINE_GROWTH: Final = (
    "Memory grows by {rate} with each iteration: {holder} keeps {nbytes} ({share} of the peak){added}. "
    "If you fix that, {the_peak} falls to {peak}."
)
"""Replaces `HEADLINE` if a part of the peak grows: the other parts then say little."""
HEADLINE_FINDING: Final = " If you fix the first finding below, {the_peak} falls to {peak}."
HEADLINE_ONE_FINDING: Final = " If you fix the finding below, {the_peak} falls to {peak}."
HEADLINE_FINDINGS: Final = " If you fix the findings below, {the_peak} falls to {peak}."
"""If the first finding alone would not lower the peak, because other memory is as large at another instant."""
HEADLINE_INSTEAD: Final = " If you make the first change below instead, it falls to {peak}."
HEADLINE_INCLUDED: Final = " If you make the first change below, which includes that fix, it falls to {peak}."
"""For a change that includes the change of the finding."""
HEADLINE_WAY: Final = " If you make the first change below, {the_peak} falls to {peak}."
HEADLINE_CODE: Final = (
    " With the change whose code is below, {the_peak} falls to {peak}; "
    "with the first change of the list, to {first}."
)
"""If the first change needs a decision, the code below is that of a later change."""

CUT_OFF: Final = "{ended}{when}. The whole program may have a higher peak, before and after each change."
ENDED_BY: Final = "The recorded code ended with {error}"
ENDED_WITH_ERROR: Final = "The recorded code ended with an error"
NOT_WHOLE: Final = "The recording has only the first part of the program"
IN_FIRST_ITERATION: Final = ", in its first iteration"
AFTER_ITERATIONS: Final = ", after {iterations}"
"""For a recording that was cut off: how it ended, and how much of the program had run."""

PROCESS: Final = "The process when it was largest: {parts}"

NO_TENSOR: Final = (
    "The program made no tensor in this process. "
    "`memwatch run --children` also records the processes that it starts."
)
NOTHING_WRITTEN: Final = (
    "The process has written nothing yet, or it ended before it wrote anything. "
    "memwatch does not know what tensors it made."
)
STORAGES: Final = "Largest storages at the peak"
MODULES: Final = "Modules at the peak, with their children"
LINES: Final = "Lines that made the memory at the peak (a backward counts for its forward line)"
HOLDERS: Final = "Who holds it at the peak: the references that keep the memory alive"
FINDINGS: Final = "Findings: memory that is alive without need"
SMALL_GROWTH: Final = (
    "Memory also grows a little: by {rate} with each iteration, held by {holder}. "
    "`memwatch leaks` names the lines."
)
SMALL_BOUND: Final = "{share} of the peak increase"
SMALL_BOUND_OF_PEAK: Final = "{share} of the peak"
"""The bound if nothing was alive before the block: the peak increase is then the peak, and no view shows it."""
SMALL_FINDINGS: Final = (
    "Findings below {bound}: {count:,} (in Python: prof.small_findings, or "
    "memwatch.load(FILE).small_findings)"
)
MORE_FINDINGS: Final = "{count:,} more: `--rows 40` lists them, and prof.findings in Python"
LEFT_OUT: Final = "More tables: {tables}. To see them:"
LEFT_OUT_ONE: Final = "One more table: {tables}. To see it:"
SHOW_ALL_CALL: Final = "prof.summary(rows=8)"
NOTES: Final = "Limits of this recording"
MORE_NOTES: Final = "{count:,} more: `--rows 40` lists them, and prof.notes in Python"
NEXT_CALL: Final = 'Next: prof.report("peak.html"), a page with every storage and its holder'
NEXT_COMMAND: Final = "Next: {command}"
LEAKS_COMMAND: Final = "To list the tensors that the program leaks, with their holders:\n{command}"
FIT_COMMAND: Final = "To run the changes and measure the peak and the time of each:\n{command}"
NEXT_TO_KEEP: Final = "Next: the same with -o FILE, which keeps it for `memwatch report` and the other verbs"

KNOWN_BY: Final = "How memwatch knows the holders, by bytes: {evidence}"
SEARCHED: Final = "memwatch searched for holders {count:,} x while the program ran: {time} in all"
CUT_SHORT: Final = "; {searches} reached the time limit and may have missed some"

ONLY_FOR_BACKWARD: Final = "Kept only for backward: "
SAVED_ANYWAY: Final = (
    "; backward also reads {nbytes} of parameters, inputs and other tensors that stay alive anyway"
)
LAYERS: Final = (
    "Each of the {count} modules `{name}` ({class_name}) saves {nbytes} for backward; with {twice} modules "
    "and their parameters, the peak would be about {peak}"
)
RECOMPUTED: Final = "Computed again in backward: "
INSTEAD: Final = "; without checkpoints, forward would keep up to {nbytes} for it"

IN_USE: Final = "In use at the peak: {share}"
IDLE: Final = {
    "lag": "alive before the first use (lag): {nbytes}",
    "drag": "alive after the last use (drag): {nbytes}",
    "void": "never used (void): {nbytes}",
    "": "use not known: {nbytes}",
}
"""Memory that is not in use, by the phase of its life."""
OTHER_THREADS: Final = "memwatch does not see which tensors other threads use"
