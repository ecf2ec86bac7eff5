"""Inference on documents: summaries, answers, passages, labels and embeddings."""
