"""The version of memwatch: a leaf, so that asking for it imports nothing else."""

__version__ = "0.1.0"  # without an annotation: the build reads this line with a regular expression
