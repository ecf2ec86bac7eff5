"""Commands that read documents, one module each; see `longspan.cli`."""
