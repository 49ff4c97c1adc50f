"""`memwatch attach`: record a stretch of a process that runs already.

The process that is recorded has a `listener`: a thread that waits for a client on a socket. `MEMWATCH=attach` starts it
when torch is imported, and from Python 3.14 on the client puts it into any process (`sys.remote_exec`). The recording
itself runs in the main thread. It begins and ends between two bytecodes, at a point that `quiet_points` allows.
The client is `memwatch/cli/processes.py`.
"""
