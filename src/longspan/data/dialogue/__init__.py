"""Dialogues: who says what in which order, the formats that they come in, and the noise of their pre-training."""
