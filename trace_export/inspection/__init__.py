"""Whether what lies in a folder can be drawn, and as what."""
