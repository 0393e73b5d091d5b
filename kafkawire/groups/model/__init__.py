"""The data of the group state machines: requests, decisions, stored records, members, states.

Values, their encoding, and which state may follow which. kafkawire.groups.classic and
kafkawire.groups.shard decide with them; this package imports neither. All modules are pure.
"""
