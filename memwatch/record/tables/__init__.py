"""The tables that both recorders fill: rows, strings, call stacks and storages, each identified by a number."""
