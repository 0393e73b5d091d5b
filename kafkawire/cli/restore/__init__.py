"""Restores: the command decides by its source; a backup, a bucket, a log, the security tables."""
