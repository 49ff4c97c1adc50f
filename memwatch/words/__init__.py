"""All English about references, holders and leaks: tables of templates by kind, and functions that fill them.

No other module holds such a sentence, and none looks into one: what decides does so by `EdgeKind`, `LeakKind`
and the other fields of `memwatch.edges`. The tables are plain dictionaries and strings with upper-case names, so
that a test can change every word and show that nothing but the words changes.

This package stands just above the leaf `memwatch.edges`; anyone may import it.
"""
