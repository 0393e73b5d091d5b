"""Log-in by SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER.

`machine` decides which request of a log-in is allowed next; a mechanism (`plain`, `scram`,
`bearer`) reads the client's tokens; `service` creates mechanisms from the settings and the
credentials. Neither passwords nor keys nor tokens of clients are in any text of these modules:
what a failure says goes to the client and to the log.

Easy to get wrong: an unknown user costs the same steps, bytes and time as a wrong password.
"""
