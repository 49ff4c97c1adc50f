"""The live view: what a capture that is being written shows now, from a process that is not the program's.

`watch.py` reads the file again as it grows, and has what is shown. `app.py` shows it on a terminal by Textual.
`beside.py` is the program's side of `memwatch run --live`.
"""
