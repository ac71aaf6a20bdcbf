"""What people do to many jobs at once, and what they look up: across all shards, carefully.

ask             `toc sql`: one SELECT over all shards. `grammar` parses it, `reading` (`terms`, `kinds`)
                checks it and makes a tree of our own, `plan` says what shards are asked and what is left,
                `pieces` whom, `writing` writes that for each kind of server (`lite` has MySQL's functions for
                SQLite), `merge` puts rows in order or hands them to a server for the rest
where           a person's WHERE: read, checked, and turned into a condition of our own
orders          what `toc admin` is told to do; changes does it, reminders tells Redis
story           `toc explain`: all there is to know about one job
"""
