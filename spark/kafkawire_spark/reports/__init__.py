"""Reports on a cluster as Spark jobs; each has tables, sentences and a plot."""
