"""Requests to brokers from Spark's drivers and tasks."""
