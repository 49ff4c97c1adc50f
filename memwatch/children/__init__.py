"""Reach the Python processes that a program starts: `memwatch run --children` records them too.

Two ways lead there. A process of multiprocessing is reached by its own hook after a fork. Every other Python looks for
a module `sitecustomize` when it starts: the folder `site` has one, and PYTHONPATH names the folder. It waits until
torch is imported, for most helpers never do that, and hands on to the `sitecustomize` that would have been found
without it.
"""
