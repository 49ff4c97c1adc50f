"""A plan in training: which regions of the forward are checkpointed, and what each of them saves."""
