"""The HTTP API: one table of routes, from which the router, the OpenAPI document and the tests of permissions derive.

    table     every route: permissions, input, output and errors
    app       one request: find the route, authenticate, read the body, call the service, answer
    problem   the only translation of errors into problem documents
    events    Server-Sent Events from changes in the store
    serve     uvicorn in the running event loop

Not here: decisions about machines, nodes or users. A handler calls one service and returns its answer.
"""
