"""Bytes to requests and responses to bytes; the asyncio shell."""
