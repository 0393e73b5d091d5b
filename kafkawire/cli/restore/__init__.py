"""Restores: from a backup, a bucket, or a log; and of the security tables."""
