"""Facts: what a capture shows without any judgement, as columns of numbers and text."""
