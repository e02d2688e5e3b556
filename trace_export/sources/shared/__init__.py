"""Helpers that readers of several formats need and no format defines: SQLite, timestamps, sorting on disk."""
