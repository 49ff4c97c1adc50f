"""How an op's arguments, results, inputs and generators are written down when recorded, and read back for a replay.

`record` writes it and `replay` reads it; neither imports the other.
"""
