"""The measured graph of a run: its operations, what each waited for, their replay, and the critical path."""
