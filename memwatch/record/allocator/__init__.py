"""The allocator's own account: every allocation and free on this thread, to the byte."""
