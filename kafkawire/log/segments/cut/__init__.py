"""Cutting: sorted segments are written from rolled journals."""
