"""The kernels: the inner loops of the planner's searches, in C++.

`src` has them, `library` builds and loads them, `calls` calls them. Where they cannot be loaded, no search runs, and
`planner/greedy.py` plans instead.
"""
