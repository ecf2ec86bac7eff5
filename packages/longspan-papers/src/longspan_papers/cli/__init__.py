"""Commands of the systems, one file each; see `longspan.cli`."""
