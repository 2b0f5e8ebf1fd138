"""A lab's terminal: a shell inside its machine, for a browser, that outlives the browser's connection for a while.

    protocol   what is said to the browser, and by it
    scroll     what the shell said last: who comes back goes on where it was
    outlook    what is known of a user's lab
    ssh        the login to the machine
    session    one user's terminal: waits for the lab, logs in, logs in again
    keeper     all terminals of a server

Nothing here knows HTTP: `entry.server.terminal` does.
"""
