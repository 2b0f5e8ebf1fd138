"""The lab terminal: a shell inside a lab machine, for a browser; the shell survives short disconnects.

    protocol     the messages to and from the browser
    scrollback   the last output of the shell, for a client that reconnects
    lab_status   the status of a user's lab
    ssh          the login to the machine
    session      one user's terminal: waits for the lab, logs in, reconnects
    sessions     all terminals of a server

Nothing here handles HTTP; `entry.server.terminal` does.
"""
