"""Client metrics (KIP-714): which clients are to push which metrics.

An operator creates *subscriptions*: settings of the resource type CLIENT_METRICS.
"""
