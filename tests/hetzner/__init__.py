"""A stand-in of Hetzner Cloud's API, and what tests do with it."""
