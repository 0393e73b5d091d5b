"""Planned moves of partitions between brokers that write to one data folder."""
