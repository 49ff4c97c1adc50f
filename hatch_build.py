"""Put compiled libraries into a wheel: those that `wheels/build.py` made, or new ones if `MEMWATCH_BUILD_NATIVE=1`."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "MEMWATCH_BUILD_NATIVE"
COMPILED, TAG = "MEMWATCH_COMPILED", "MEMWATCH_WHEEL_TAG"
"""The libraries that `wheels/build.py` compiled, and the tag of the wheel."""
FOLDERS = {
    "_cuda_driver": "memwatch/devices/cuda_allocator/built",
    "_device": "memwatch/devices/pretended/built",
    "_malloc_sampler": "memwatch/monitor/built",
    "_planner": "memwatch/planner/native/built",
    "_recorder": "memwatch/record/native/built",
}
"""Where a library belongs in the wheel, by the first word of its name."""


class NativeRecorder(BuildHookInterface):
    """Compile the recorder for the torch of the build's environment, and the libraries that need no torch.

    Without the variable the wheel is pure Python. The recorder serves that torch and that Python alone: with others
    the recorder in Python is used.
    """

    def dependencies(self) -> list[str]:
        """Return what the build needs: to compile the recorder imports it, and what it needs to run."""
        return list(self.metadata.core.dependencies) if self._is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to a wheel, whose tags then name this platform; an editable one has the user's cache."""
        if version == "editable":
            return
        if compiled := os.environ.get(COMPILED):
            files = [pathlib.Path(file) for file in compiled.split(os.pathsep)]
            names = [file.name for file in files]
            build_data |= {"pure_python": False, "tag": os.environ[TAG]}
        elif self._is_wanted():
            files, names = self._compile()
            build_data |= {"pure_python": False, "infer_tag": True}
        else:
            return
        for file, name in zip(files, names, strict=True):
            build_data["force_include"][str(file)] = f"{FOLDERS[name.split('-')[0]]}/{name}"

    def _compile(self) -> tuple[list[pathlib.Path], list[str]]:
        """Compile for the torch that is installed here; return the libraries, and their names in the wheel."""
        sys.path.insert(0, self.root)
        from memwatch.devices import pretended
        from memwatch.devices.cuda_allocator.torchs_own import build_driver
        from memwatch.monitor.malloc_sampler import build_sampler
        from memwatch.planner.native.library import build as build_kernels
        from memwatch.record.native import library
        from memwatch.record.native.library import build_recorder

        torchs = {
            library.wheel_name(): build_recorder()[0],
            pretended.wheel_name(): pretended.build_device()[0],
        }
        others = [build_kernels()[0], build_driver()[0], build_sampler()[0]]
        return [*torchs.values(), *others], [*torchs, *(file.name for file in others)]

    def _is_wanted(self) -> bool:
        return os.environ.get(VARIABLE) == "1"
