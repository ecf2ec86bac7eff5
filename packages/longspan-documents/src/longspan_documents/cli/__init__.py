"""Commands that read documents, one file each; see `longspan.cli`."""
