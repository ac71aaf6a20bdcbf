"""Tables that analysts read: Delta tables in the archive's folder, one day of one database at a time."""
