"""Tests of share groups."""
