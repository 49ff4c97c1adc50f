"""What was recorded: plain tables with units, one file on disk."""
