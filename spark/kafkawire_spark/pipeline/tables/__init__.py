"""Table formats: Parquet, Delta and Iceberg."""
