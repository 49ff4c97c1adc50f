"""The samples of torch's op database are those of tests/compat."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "compat"))
