"""All English about references, holders and leaks: tables of templates by kind, and functions that fill them.

All sentences about them stand here. Code that decides something reads `EdgeKind`, `LeakKind` and the other fields of
`memwatch.edges`, and never the sentences. The tables are plain dictionaries and strings with upper-case names, so
that a test can change every word and show that nothing but the words changes.

This package stands just above the leaf `memwatch.edges`; anyone may import it.
"""
