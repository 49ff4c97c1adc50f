"""The figures and words of a plan that the terminal and the page share."""
