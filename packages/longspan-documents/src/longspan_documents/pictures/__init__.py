"""Pages and pictures of summaries and answers."""
