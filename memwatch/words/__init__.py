"""All English about references, holders and leaks: templates, and functions that fill them.

The words that depend on a kind stand in the row of the kind, in `memwatch.kinds`. All other sentences stand here.
Code that decides something reads the kinds and the other fields of their rows, and never the sentences. Templates
are strings and dictionaries with upper-case names, so that a test can change every word, those of the rows as well,
and show that nothing but the words changes.

This package stands just above the leaf `memwatch.kinds`; anyone may import it.
"""
