"""A collection of documents whose lower-layer states are kept on disk, to be asked again and again."""
