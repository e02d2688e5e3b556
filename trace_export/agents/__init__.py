"""What programs that are no people ask of runs: a server of the Model Context Protocol, which only reads."""
