"""A plan of a training step for `memwatch.apply_plan`, which holds no tensor of the step."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from typing import TYPE_CHECKING

from memwatch.planner.plan import Plan, load_plan
from memwatch.replay.api import plan

if TYPE_CHECKING:
    from memwatch.profile import Profile


def plan_of(recording: Profile) -> Plan:
    """Return a plan with the content of a recorded step, read back from a file, because the recording holds tensors.

    Checkpoints are chosen when the plan is applied, so no order is searched here.
    """
    found = plan(recording, order="program", recompute=False)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step.plan")
        found.save(path)
        return load_plan(path)


def within_budget(found: Plan, budget_bytes: int) -> Plan:
    """Return a plan with another budget (bytes of peak increase)."""
    return dataclasses.replace(found, budget_bytes=budget_bytes)
