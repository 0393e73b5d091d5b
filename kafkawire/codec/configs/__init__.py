"""Settings: the table of rows, parsing, and typed objects."""
