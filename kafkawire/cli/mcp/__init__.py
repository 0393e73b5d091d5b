"""`kafkawire mcp`: tools for a language model that explain a cluster and read its records.

`tools` are the functions, which only read; `answers` makes bounded JSON of what they return.
`command` serves the tools over standard input and output (Model Context Protocol). Most work is
done by kafkawire.console.views.
"""
