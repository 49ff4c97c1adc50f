"""Files that a hostile author would hand out as captures; each function changes a good one."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import struct
import zlib

from memwatch.capture.columns import INTEGER_TABLES, MOST_ROWS
from memwatch.capture.schema import RECORDED_BY_NAME

ESCAPE = "\x1b[31mred\x1b]0;title\x07"
PAGE = 4096
_ENDLESS = "WITH RECURSIVE n(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM n) "
_NEVER = f"{_ENDLESS} SELECT x, x FROM n WHERE x < 0"


@contextlib.contextmanager
def database(path):
    with contextlib.closing(sqlite3.connect(path)) as opened, opened:
        yield opened


def _instead_of(table, select):
    def change(path):
        with database(path) as opened:
            opened.execute(f"DROP TABLE {table}")
            opened.execute(f"CREATE VIEW {table} AS {select}")

    return change


def _statements(*texts):
    def change(path):
        with database(path) as opened:
            for text in texts:
                opened.execute(text)

    return change


def _rewritten(table, columns):
    """Make a table again with other text."""
    return _statements(f"DROP TABLE {table}", f"CREATE TABLE {table} ({columns})")


def _schema_row(kind, name, sql):
    def change(path):
        with database(path) as opened:
            opened.execute("PRAGMA writable_schema = ON")
            opened.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, 0, ?)", (kind, name, name, sql))

    return change


def _meta(text):
    def change(path):
        with database(path) as opened:
            opened.execute("INSERT INTO meta VALUES ('argv', ?)", (text,))

    return change


def _chunks_of_width_0(tables, runs):
    def change(path):
        head = struct.pack("<??Bxqq", False, False, 0, 0, 0)
        with database(path) as opened:
            opened.execute("DELETE FROM chunks")
            for table in tables:
                for _ in range(runs):
                    opened.executemany(
                        "INSERT INTO chunks VALUES (?, ?, ?, 0, 0, ?, ?)",
                        [
                            (table, name, MOST_ROWS, zlib.crc32(head), head)
                            for name in RECORDED_BY_NAME[table].names
                        ],
                    )

    return change


def _interior(child, header_bytes=0):
    """Return a page of a table's tree whose cells all lead to one child."""
    cells = (PAGE - header_bytes - 12) // 8
    page = bytearray(PAGE)
    offset = header_bytes
    page[offset : offset + 12] = struct.pack(">BHHHBI", 5, 0, cells, PAGE - 5 * cells, 0, child)
    for number in range(cells):
        at = PAGE - 5 * (number + 1)
        page[at : at + 5] = struct.pack(">IB", child, 1)
        struct.pack_into(">H", page, offset + 12 + 2 * number, at)
    return page


def _pages_in_a_ring(root_of):
    """Have the pages of a tree refer to one leaf, by several levels: more rows than anybody can count."""

    def change(path):
        with database(path) as opened:
            opened.execute("PRAGMA writable_schema = ON")
            found = opened.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (root_of,)).fetchone()
        data = bytearray(path.read_bytes())
        root = found[0] if found else 1
        pages = len(data) // PAGE
        leaf = bytes(data[(root - 1) * PAGE : root * PAGE])
        if root == 1:  # its cells stay where they are; only the head goes
            leaf = bytearray(PAGE)
            leaf[:] = data[:PAGE]
            moved = leaf[100:112]
            leaf[0:8] = moved[:8]
            count = struct.unpack(">H", moved[3:5])[0]
            leaf[8 : 8 + 2 * count] = data[108 : 108 + 2 * count]
        elif leaf[0] == 5:
            (leaf_page,) = struct.unpack(">I", leaf[8:12])
            leaf = bytes(data[(leaf_page - 1) * PAGE : leaf_page * PAGE])
        data += leaf
        child = pages + 1
        for _ in range(8):
            data += _interior(child)
            child = len(data) // PAGE
        if root == 1:
            top = _interior(child, header_bytes=100)
            top[:100] = data[:100]
            data[:PAGE] = top
        else:
            data[(root - 1) * PAGE : root * PAGE] = _interior(child)
        struct.pack_into(">I", data, 28, len(data) // PAGE)
        path.write_bytes(data)

    return change


def _as_write_ahead_log(path):
    with database(path) as opened:
        opened.execute("PRAGMA journal_mode = WAL")


def _with_write_ahead_log(path):
    path.with_name(f"{path.name}-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(1000))


def _hole(path):
    data = bytearray(path.read_bytes())
    struct.pack_into(">I", data, 28, (1 << 38) // PAGE)
    path.write_bytes(data)
    os.truncate(path, 1 << 38)


HOSTILE = {
    "chunks that are never found": _instead_of("chunks", f"{_ENDLESS} SELECT x, x, x, x, x, x, x FROM n WHERE x < 0"),
    "strings that are never found": _instead_of("strings", _NEVER),
    "meta that is never found": _instead_of("meta", _NEVER),
    "strings without end": _instead_of("strings", f"{_ENDLESS} SELECT x AS id, x AS text FROM n"),
    "meta without end": _instead_of("meta", f"{_ENDLESS} SELECT x AS key, x AS value FROM n"),
    "a blob of zeros": _instead_of("meta", "SELECT 'argv' AS key, zeroblob(900000000) AS value"),
    "a long text by replace": _instead_of(
        "meta", "SELECT 'a' AS key, replace(hex(zeroblob(9999999)), '0', '0000000000') AS value"
    ),
    "a generated column": _rewritten("notes", "op INTEGER, kind TEXT, text TEXT AS (hex(zeroblob(100000000)))"),
    "a default": _rewritten("notes", "op INTEGER, kind TEXT, text TEXT DEFAULT (hex(randomblob(9)))"),
    "a table without numbers": _statements(
        "DROP TABLE strings", "CREATE TABLE strings (id INTEGER PRIMARY KEY, text TEXT) WITHOUT ROWID"
    ),
    "a trigger": _statements("CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM chunks; END"),
    "an index of an expression": _statements("CREATE INDEX i ON meta(hex(key))"),
    "another table": _statements(f'CREATE TABLE "{ESCAPE}" (x)'),
    "a view of another name": _statements(f'CREATE VIEW "{ESCAPE}" AS SELECT 1'),
    "a virtual table": _schema_row("table", "v", "CREATE VIRTUAL TABLE v USING fts5(x)"),
    "a schema that is no SQL": _schema_row("table", ESCAPE, f"CREATE TABEL {ESCAPE}"),
    "a schema of a million letters": _schema_row("view", "v", f"CREATE VIEW v AS SELECT {'(' * 10**6}"),
    "rows of width 0 in ops": _chunks_of_width_0(["ops"], 15),
    "rows of width 0 in deaths": _chunks_of_width_0(["deaths"], 60),
    "rows of width 0 in all tables": _chunks_of_width_0(INTEGER_TABLES, 1),
    "nested brackets": _meta("[" * 100_000),
    "nested objects": _meta('{"a":' * 100_000 + "1" + "}" * 100_000),
    "lists in lists": _meta("[" * 900 + "]" * 900),
    "a number of a million digits": _meta("9" * 10**6),
    "a long text": _meta(json.dumps("x" * (100 << 20))),
    "a long string": _statements("INSERT INTO strings SELECT max(id) + 1, hex(zeroblob(40000000)) FROM strings"),
    "strings in a ring": _pages_in_a_ring("strings"),
    "chunks in a ring": _pages_in_a_ring("chunks"),
    "meta in a ring": _pages_in_a_ring("meta"),
    "a schema in a ring": _pages_in_a_ring("sqlite_master"),
    "a write-ahead log": _as_write_ahead_log,
    "a write-ahead log beside it": _with_write_ahead_log,
    "a hole": _hole,
}  # fmt: skip
