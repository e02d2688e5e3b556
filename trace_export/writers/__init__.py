"""A chart, or the table of blocks, to files: each appears whole or not at all."""
