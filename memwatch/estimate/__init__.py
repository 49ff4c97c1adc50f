"""What a program's tensors would take: its beginning runs on fake tensors, as one rank of a job that is not there."""
