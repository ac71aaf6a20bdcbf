"""The words of toc as values and pure functions: no I/O, no clock, no randomness, standard library only."""
