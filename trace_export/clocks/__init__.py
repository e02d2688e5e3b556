"""Tables in, one clock for all hosts out."""
