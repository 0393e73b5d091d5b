"""Values of reading: sources, ranges of offsets, tasks, columns and records. Pure."""
