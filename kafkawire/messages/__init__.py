"""Declarations of Kafka's messages: data only, one module per API."""
