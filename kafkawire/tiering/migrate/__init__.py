"""Migration: copies all objects of a tier to another one."""
