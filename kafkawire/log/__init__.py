"""The commit log: journals, partitions, recovery, and the ports to the world outside."""
