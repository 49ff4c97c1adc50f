"""C++ appends rows by structs, and Python by named tuples, that are the schema's."""

from __future__ import annotations

from pathlib import Path

from memwatch.capture import rows
from memwatch.capture.docs import TABLES_OF_CPP, rows_module, schema_header
from memwatch.capture.schema import RECORDED_BY_NAME

HEADER = Path(__file__).parents[2] / "memwatch" / "record" / "native" / "src" / "schema.h"


def test_the_header_is_fresh():
    """The header equals the output of `python -m memwatch.capture.docs` (`make schema`)."""
    assert HEADER.read_text(encoding="utf-8") == schema_header()


def test_the_named_tuples_are_fresh():
    """The module equals the output of `python -m memwatch.capture.docs rows` (`make schema`)."""
    assert Path(rows.__file__).read_text(encoding="utf-8") == rows_module()


def test_a_struct_has_a_field_for_every_column_in_order():
    """The native recorder writes no names, so the order of the fields is all that makes a number a column's."""
    header = schema_header()
    for name in TABLES_OF_CPP:
        struct = header.split(f"struct {name.capitalize()}Row {{")[1].split("}")[0]
        fields = [line.split()[1].rstrip(";") for line in struct.strip().splitlines()]
        assert [field.replace("_ticks", "_ns") for field in fields] == list(RECORDED_BY_NAME[name].names)
