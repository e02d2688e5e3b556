"""Characters for random texts."""

from hypothesis import strategies as st

CHARACTERS = st.characters(exclude_categories=["Cs"])
"""All that UTF-8 can encode. Hypothesis finds them by category; by `codec`, its default, it encodes a million first."""
