"""The task library: every SQL statement of toc.

Authority: the row. When `Jobs.insert` has returned, the job is as durable as the database's COMMIT
(I1); every other verb is a statement that is guarded by the row's status (I3), its token (I5) and
the database's clock. Nothing else in toc decides who may run a job.

    databases   connections, transactions, retries
    verb        a verb, written once; pipeline: the executor that sends it in one round trip
    column_types, schema, driver_errors   where MySQL, MariaDB and SQLite differ
    database_metadata   type numbers, routing fingerprint, identity of a database
    jobs        clients' verbs: insert, get, find, cancel, reschedule, redrive, discard, dead letters
    claims      workers' verbs: claim, take over, settle
    due_pages   pages of due rows, for the loader and the scanner
    migrate, migration_run, schema_executor, schema_steps   the revisions of the schema, and how they are run
    table_shapes, schema_drift, schema_drift_repair, schema_status   how tables differ from the revisions,
        and the statements that repair them
    mover, move_server, move_checks, database_home   the move of a database to another server
"""
