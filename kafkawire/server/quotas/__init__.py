"""Enforcement of quotas: `metering` of requests, `arrivals` of new connections."""
