"""The lab terminal: a shell inside a lab machine, for a browser; the shell survives short disconnects.

    protocol   the messages to and from the browser, and the last output, for a client that reconnects
    machine    the status of a user's lab, and the login to its machine
    session    one user's terminal: waits for the lab, logs in, reconnects
    sessions   all terminals of a server

Nothing here handles HTTP; `entry.server.terminal` does.
"""
