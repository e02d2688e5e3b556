"""The steps from a folder to files, in order: `requests.py`. What users ask of them: `arguments.py`, `options.py`."""
