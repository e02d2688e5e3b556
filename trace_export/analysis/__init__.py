"""What a run says about its speed: bubbles, stragglers, comparison with theory and with other runs."""
