"""The live view: what a capture that is being written shows now, from a process that is not the program's.

`watch.py` reads the file again as it grows, at a pace that `pace.py` allows; `figures.py` has what is shown,
`state.py` whether the program still runs. `app.py` shows it on a terminal by Textual, `lines.py` as plain text.
`beside.py` is the program's side of `memwatch run --live`, `program_output.py` the viewer's.
"""
