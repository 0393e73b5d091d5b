"""The HTTP API: topics, records, groups and the remote tier as JSON, for programs without Kafka.

Each operation is declared once, with its parameters and its handler; routes, checks of parameters
and the OpenAPI document are made from the declarations. Handlers call the same functions of `views`
as pages do, so rights and limits are the same.

Easy to get wrong: keys, values and header values are bytes. JSON has them as text only where they
are UTF-8, else in base64 under another name, so a program never has to guess.
"""
