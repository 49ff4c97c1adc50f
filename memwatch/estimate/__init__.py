"""Estimate the tensors of a program: its beginning runs on fake tensors, as one rank of a simulated job."""
