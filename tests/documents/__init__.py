"""Tests that run what the documents say."""
