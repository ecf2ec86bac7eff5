"""A collection of documents whose lower-layer states are stored on disk, so that many questions can be asked of it."""
