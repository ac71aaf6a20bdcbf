"""The protocols as a model that a machine goes through completely. README.md says what is in it."""
