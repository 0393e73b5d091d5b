"""Commands about the cluster, settings and metadata."""
