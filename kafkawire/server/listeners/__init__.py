"""What listeners have of their own: certificates, log-ins, limits of connections.

Listeners with the same settings share them; see `kafkawire.codec.configs.listeners`.
"""
