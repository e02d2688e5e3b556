"""A job that still runs: its last steps, drawn and measured again as its profiles grow."""
