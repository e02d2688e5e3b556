"""Shows a finished trace in the Perfetto UI."""
