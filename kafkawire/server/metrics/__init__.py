"""Metric families of the /metrics page, read from counters of the broker's components."""
