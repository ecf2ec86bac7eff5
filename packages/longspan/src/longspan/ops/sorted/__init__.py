"""Attention within groups that depend on the data: hash buckets, clusters, sorted blocks, the highest scores."""
