"""The page of a run of any number of ranks."""
