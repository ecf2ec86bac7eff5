"""Documents that are zip archives: Word files, OpenDocument files and e-books."""
