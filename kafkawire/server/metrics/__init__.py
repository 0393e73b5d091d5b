"""Metric families of the /metrics page, read from plain integer counters of the broker's parts."""
