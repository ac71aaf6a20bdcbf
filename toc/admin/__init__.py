"""What people do to many jobs at once, and what they look up: across all shards, carefully.

ask             `toc sql`: one SELECT over all shards. `reading` takes it in, `query` plans what shards are
                asked, `writing` writes that for each kind of server (`lite` has MySQL's functions for
                SQLite), `merge` and `computing` make one answer of theirs
where           a person's WHERE: read, checked, and turned into a condition of our own
orders          what `toc admin` is told to do; changes does it, reminders tells Redis
story           `toc explain`: all there is to know about one job
"""
