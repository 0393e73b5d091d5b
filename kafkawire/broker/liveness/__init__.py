"""Which brokers of the cluster are alive, according to their heartbeats in SQL."""
