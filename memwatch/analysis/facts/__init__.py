"""Facts: the contents of a capture without any judgement, as columns of numbers and text."""
