"""Coreference: features of documents, clusters out of antecedents, and the training task."""
