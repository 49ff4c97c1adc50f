"""Choose the line of a finding: a user edits the program's code, not torch or an installed package."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from memwatch.own_code import CodeOwner

if TYPE_CHECKING:
    from memwatch.analysis.facts.facts import Facts
    from memwatch.analysis.findings.candidate import Candidate


def in_own_code(candidate: Candidate, facts: Facts) -> Candidate | None:
    """Return a candidate with a line of the program; None if only torch's or a package's author could follow it.

    Where no code is the program's own, as when a package's own command runs, all lines count.
    """
    holder = candidate.holder
    file = holder.site.rpartition(":")[0]
    owner = facts.call_stacks.owner_of_file.get(file, CodeOwner.PROGRAM)
    if not facts.call_stacks.has_program_code or (owner == CodeOwner.PROGRAM and not holder.foreign):
        return candidate
    own_lines = facts.made_by.own_line[candidate.allocations]
    line = next((str(line) for line in own_lines if line), "")
    if not candidate.kind.row.is_mended_by_callers or not line:
        return None
    return dataclasses.replace(candidate, holder=dataclasses.replace(holder, site=line, is_own=True))
