"""Tests of share partitions."""
