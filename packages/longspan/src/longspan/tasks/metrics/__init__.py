"""Metrics, computed as by the official scripts."""
