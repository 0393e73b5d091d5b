"""Settings: the table of rows, parsing, and typed objects.

One row per setting (`table`, `tier_rows`) feeds validation, DescribeConfigs and docs/configs.md.
A new setting is a row and an attribute in `settings`. `unsupported` lists Kafka's broker settings
that do not exist here, and which of them admin tools may set nevertheless.
"""
