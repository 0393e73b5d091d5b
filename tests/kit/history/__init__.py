"""Histories of clients that produce, read and commit offsets while brokers fail, and a checker."""
