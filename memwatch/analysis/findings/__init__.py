"""Findings: changes that would lower the peak by cutting one reference, or by doing one thing at another time.

There is one rule per file. A rule is a function from a moment, the facts at one event of the live curve, to
candidates. `search` applies the rules at the highest event, takes the candidates' bytes away and goes on at the next
highest. `ranking` keeps the candidates that lower the peak, alone or together.
"""
