"""Puts all hosts on one clock, from messages, collectives and dependencies between blocks."""
