"""The pytest plugin of memwatch."""
