"""A run of any number of ranks, one pipeline at a time: `build.py` has the steps in order."""
