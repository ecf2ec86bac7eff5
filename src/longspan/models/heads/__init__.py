"""Task heads on the encoder: one file each."""
