"""`python -m trace_export` is `trace-export`."""

from trace_export.cli import main

if __name__ == "__main__":
    main()
