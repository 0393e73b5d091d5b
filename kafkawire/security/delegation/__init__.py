"""Delegation tokens: passwords that expire, which a logged-in client gets for its workers (KIP-48,
KIP-373).

`model` has the fields of a token and who may use it, `stored` the table, and `service` creates,
renews and ends tokens, and finds the credential for a log-in. The token itself, which the client
gets, is the HMAC of its id with `delegation.token.secret.key`: it is stored nowhere.

Easy to get wrong:

- Another secret key makes all tokens invalid: those in the table have been made with a key whose
  fingerprint is not that of the current one, and are ignored until they expire.
- A log-in with a token is one with SCRAM whose first message has the extension `tokenauth=true`.
  Its keys are derived when the token is created.
"""
