"""The noise of DialogLM: a window of a dialogue, and five ways to disturb it."""
