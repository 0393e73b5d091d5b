"""Migration: all objects of a tier copied to another one."""
