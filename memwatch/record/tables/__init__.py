"""What every recorder writes to: rows, strings, call stacks and storages, each named by a number."""
