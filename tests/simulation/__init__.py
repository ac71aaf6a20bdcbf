"""Whole nodes in one process, on a virtual clock, with faults between any two steps. See docs/simulation.md."""
