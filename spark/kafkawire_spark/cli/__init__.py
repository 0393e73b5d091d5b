"""Commands about Spark tables."""
