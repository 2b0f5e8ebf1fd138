"""The HTTP API: one table of routes, from which the router, the OpenAPI document and the test of rights are made.

    table     every route: who may, what goes in, what comes out, which errors
    app       one request: find the route, know the caller, read the body, ask the service, answer
    problem   the one translator of errors into problem documents
    events    Server-Sent Events from the store's own changes
    serve     uvicorn inside the loop that is there already

Not here: any decision about machines, nodes or people. A handler asks one service, and says what it answered.
"""
