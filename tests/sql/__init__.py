"""SQL over topics on DuckDB."""
