"""Reports on a cluster as Spark jobs: each gives tables, sentences and a plot."""
