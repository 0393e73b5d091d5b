"""`kafkawire sql`: SQL over topics on DuckDB. `command` declares it, `output` writes the rows."""
