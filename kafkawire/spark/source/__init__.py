"""The data source `kafkawire`: topics read as Spark tables."""
