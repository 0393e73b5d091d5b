"""TLS: contexts from PEM files, and the names in client certificates.

`contexts` reads and checks the files, `names` writes the subject of a certificate as Java does,
`mapping` turns it into the name of a principal (`ssl.principal.mapping.rules`). The sockets are in
kafkawire.server.tls.
"""
