"""Commands for the systems of papers, one module each; see `longspan.cli`."""
