"""What the integers of the recorded tables refer to: rows of another table, texts, owners of code."""

from __future__ import annotations

from typing import Final

from memwatch.capture.table import Reference
from memwatch.own_code import CodeOwner

OP: Final = Reference("ops")
OP_OR_NONE: Final = Reference("ops", or_none=True)
OPS_STARTED: Final = Reference("ops", is_count=True)
OPS_STARTED_OR_NONE: Final = Reference("ops", is_count=True, or_none=True)
STORAGE: Final = Reference("births")
STORAGE_OR_NONE: Final = Reference("births", or_none=True)
PACK: Final = Reference("packs")
MODULE: Final = Reference("modules")
MODULE_OR_NONE: Final = Reference("modules", or_none=True)
STACK: Final = Reference("stacks")
STACK_OR_NONE: Final = Reference("stacks", or_none=True)
PATH: Final = Reference("edges")
VERTEX: Final = Reference("vertices")
VERTEX_OR_NONE: Final = Reference("vertices", or_none=True)
TEXT: Final = Reference("strings")
TEXT_OR_NONE: Final = Reference("strings", or_none=True)
JSON_TEXT: Final = Reference("strings", is_json=True)
JSON_TEXT_OR_NONE: Final = Reference("strings", or_none=True, is_json=True)
CODE: Final = Reference(choices=len(CodeOwner))
CODE_OR_NONE: Final = Reference(choices=len(CodeOwner), or_none=True)
FLAG: Final = Reference(choices=2)
