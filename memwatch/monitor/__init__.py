"""The memory of the whole process: the parts of its RSS, and the parts that grow while it runs.

`mappings.py` reads the kernel's lists and finds malloc's blocks in them, and `objects.py` finds the tensors and the
large Python objects. `rows.py` makes rows of them that sum to RSS, and `process.py` a table of the rows. `watch.py` has
the monitor, a thread that samples the rows; `history.py` decides which of them grow. `examine.py` names what they hold,
and finds lists whose objects forks have copied.
"""
