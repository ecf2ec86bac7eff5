"""Attention within what the data sort together: hash buckets, clusters, sorted blocks, the highest scores."""
