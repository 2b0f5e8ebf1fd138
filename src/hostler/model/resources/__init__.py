"""The resources of the HTTP API, each operation declared once.

The server, the client, the OpenAPI document and the tests of permissions read the declarations (decision 44).
"""
