"""Ports to the machine and what implements them: disk, threads, worker process, event-loop time."""
