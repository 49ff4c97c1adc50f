"""Write the page of documentation that lists every record: `python -m memwatch.report.records.docs > docs/json.md`."""

from __future__ import annotations

import inspect
import sys
from typing import Any, Final, get_args, get_type_hints

from memwatch.report.records.schema import RECORDS

_HEAD: Final = """# JSON

Generated from `memwatch/report/records/schema.py` by `python -m memwatch.report.records.docs > docs/json.md`.

`summary`, `tree`, `stats`, `diff`, `plan`, `replay`, `estimate`, `tune`, `attach` and `ps` print JSON with `--json`,
and `memwatch mcp CAPTURE` answers with the same records ([command_line.md](command_line.md)). `MEMWATCH=oom` writes an
`OutOfMemoryRecord` when memory runs out ([process.md](process.md#when-memory-runs-out)). The end of a field's name is
its unit: `_bytes`, `_ns`, `_s` or `_ratio`. `nbytes` is in bytes. A later version may add fields. It does not remove
the fields on this page.
"""


def json_page() -> str:
    """Return the page as Markdown."""
    return _HEAD + "".join(map(_section, RECORDS))


def _section(record: type) -> str:
    fields = get_type_hints(record, include_extras=True)
    rows = ""
    for name, hint in fields.items():
        kind, meaning = get_args(hint)  # of Annotated[kind, meaning]
        rows += f"| `{name}` | {_type(kind)} | {meaning} |\n"
    heading = f"\n## {record.__name__}\n\n{inspect.getdoc(record)}\n\n"
    return f"{heading}| field | type | meaning |\n| --- | --- | --- |\n{rows}"


def _type(hint: Any) -> str:
    """Return a type without the names of modules, and with `or null` for `| None`."""
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return text.replace(f"{RECORDS[0].__module__}.", "").replace(" | None", " or null")


if __name__ == "__main__":
    sys.stdout.write(json_page())
