"""Maps a function over sources: in this process, in worker processes, or on a Dask cluster."""
