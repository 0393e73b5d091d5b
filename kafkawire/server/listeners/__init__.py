"""Certificates, log-ins and limits of connections of single listeners.

Listeners with the same settings share them; see `kafkawire.codec.configs.listeners`.
"""
