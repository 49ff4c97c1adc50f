"""The samples of torch's op database come from tests/compat."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "compat"))
