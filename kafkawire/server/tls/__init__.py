"""TLS listeners: encryption between the sockets and the connections.

kafkawire.server.tls_wire decrypts into the receive memory and encrypts responses. `handshakes`
bounds what handshakes cost, `records` finds the borders of records, `certificates` has the contexts
and reads changed PEM files. kafkawire.security.tls builds the contexts.

Easy to get wrong: OpenSSL never returns the memory of a BIO, so at most one record is put into the
incoming one at a time, and the outgoing one is emptied after two.
"""
