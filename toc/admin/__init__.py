"""Commands of DBAs that read or change many jobs across all shards.

toc sql       query_run answers one SELECT over all shards. statement_parser, query_reader,
              expression_parser, function_calls and type_check make a checked tree of the text;
              query_plan decides which SELECT the shards get and which one a server runs on their rows;
              sql_writer writes both; row_merge puts the rows of shards together.
              sqlite_dialect and sqlite_functions have MySQL's functions for SQLite.
toc admin     bulk_request holds the change to make and its WHERE (where_condition); bulk_changes and bulk_run
              change the jobs, and update Redis.
toc explain   job_explanation collects everything known about one job.
"""
