"""The steps from a folder to files, in order: `export.py`; and what users ask of them: `arguments.py`, `options.py`."""
