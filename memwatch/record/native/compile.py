"""Compile the native recorder. `library.build` runs this file in a process that imports nothing of memwatch.

A process of its own is needed because the compiler writes to the process's output and setuptools ends the process on
some errors. Usage: `python compile.py NAME FOLDER FLAG... -- SOURCE...`
"""

from __future__ import annotations

import shutil
import sys
from typing import Any, Final

NO_COMPILER: Final = 3
"""The exit status if there is no compiler. The last line of the output names the missing compiler."""
NO_SETUPTOOLS: Final = 4
"""The exit status if setuptools is not installed."""


def main(name: str, folder: str, flags: list[str], sources: list[str]) -> int:
    """Compile the sources to a library in a folder; return the exit status."""
    try:
        from setuptools import Distribution
    except ModuleNotFoundError:
        return NO_SETUPTOOLS
    from torch.utils.cpp_extension import BuildExtension, CppExtension

    class Build(BuildExtension):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs | {"use_ninja": False})

        def build_extensions(self) -> None:
            compiler = getattr(self.compiler, "compiler_so_cxx", None) or getattr(
                self.compiler, "compiler_so", None
            )
            if compiler and shutil.which(compiler[0]) is None:
                sys.stdout.write(f"{compiler[0]}\n")
                sys.stdout.flush()
                raise SystemExit(NO_COMPILER)
            super().build_extensions()

    extension = CppExtension(name, sources, extra_compile_args=flags)
    distribution = Distribution({"name": name, "ext_modules": [extension], "cmdclass": {"build_ext": Build}})
    task: Any = distribution.get_command_obj("build_ext")
    task.build_lib = task.build_temp = folder
    task.ensure_finalized()
    task.run()
    return 0


if __name__ == "__main__":
    _name, _folder, *_rest = sys.argv[1:]
    _end = _rest.index("--")
    sys.exit(main(_name, _folder, _rest[:_end], _rest[_end + 1 :]))
