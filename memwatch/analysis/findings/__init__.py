"""Findings: what would lower the peak if one reference were cut, or one thing were done at another time.

One rule a file. A rule is a function from a moment, the facts as seen at one event of the live curve, to
candidates; `search` applies the rules at the highest event, takes the candidates' bytes away and goes on at the next
highest; `ranking` keeps what lowers the peak, alone or together.
"""
