"""Micro benchmarks, each of one part."""
