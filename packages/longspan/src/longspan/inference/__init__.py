"""Text generation with a language model, and the command for each kind of model."""
