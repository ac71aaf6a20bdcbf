"""Reconciliation: the nightly compare, its repairs and reports."""
