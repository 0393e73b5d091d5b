"""Access rules (ACLs): which principal may do what with which resource, as in Kafka's
StandardAuthorizer.

`model` has the types and filters, `index` the decision, both pure. `service` keeps the rules of
this broker, stores changes in SQL (`stored`), and gives each connection its `rights.Rights`, where
decisions are cached until a rule changes. The handlers call Rights; `kafkawire.handlers.access` is
the table of what each API needs.

Easy to get wrong:

- Patterns have no order: a literal rule, every prefix and the literal "*" count together.
- Only an allowing rule implies other operations (READ: DESCRIBE); a denying one does not.
- The default for resources without a rule is used only if no rule of any principal matches the
  resource.
"""
