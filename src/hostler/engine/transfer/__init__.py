"""Transfer of records into a store, from another store or a backup, and the epoch that begins with it."""
