"""What a plan does, in figures and words: the part that terminal and page share."""
