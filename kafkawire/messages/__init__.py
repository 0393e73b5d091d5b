"""Declarations of Kafka's messages, one module per API, and the flat codec of Produce."""
