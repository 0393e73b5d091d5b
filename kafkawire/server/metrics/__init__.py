"""What the metrics page says: families of series, read from the parts' plain integers."""
