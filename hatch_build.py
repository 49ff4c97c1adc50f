"""What is compiled in the wheel: `MEMWATCH_BUILD_NATIVE=1 python -m build --wheel` compiles it in."""

from __future__ import annotations

import os
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "MEMWATCH_BUILD_NATIVE"


class NativeRecorder(BuildHookInterface):
    """Compile the planner's kernels, and the recorder for the torch of the build's environment.

    Without the variable the wheel is pure Python. The recorder serves that torch and that Python alone: with others
    the recorder in Python is used.
    """

    def dependencies(self) -> list[str]:
        """Return what the build needs: to compile the recorder imports it, and what it needs to run."""
        return list(self.metadata.core.dependencies) if self._is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to a wheel, whose tags then name this platform; an editable one has the user's cache."""
        if version == "editable" or not self._is_wanted():
            return
        sys.path.insert(0, self.root)
        from memwatch.planner.kernels import compile_kernels
        from memwatch.planner.native import library as kernels
        from memwatch.record.native import library
        from memwatch.record.native.building import build_recorder

        build_data |= {"pure_python": False, "infer_tag": True}
        for (file, _), folder in ((build_recorder(), library.BUILT), (compile_kernels(), kernels.BUILT)):
            build_data["force_include"][str(file)] = str(folder.relative_to(self.root) / file.name)

    def _is_wanted(self) -> bool:
        return os.environ.get(VARIABLE) == "1"
