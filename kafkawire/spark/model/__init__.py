"""Values that every part of the Spark side shares: ranges, tasks, accounts and columns. Pure."""
