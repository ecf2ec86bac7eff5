"""Tasks: what a row means, from rows to features, loss, metric and answer."""
