"""Tasks that learn from text without labels."""
