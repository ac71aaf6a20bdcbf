"""The report of a reconciliation: a page for people, JSON for programs, Parquet for analysts."""
