"""Who a client is and what it may do: principals, access rules, log-in, quotas, encryption.

`principals` names the clients. A connection starts as `ANONYMOUS`; TLS and SASL set its principal
once (`Connection.set_principal`), and everything that depends on the client reads it from there.
"""
