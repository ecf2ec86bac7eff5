"""What people look at: patterns, summaries, answers."""
