"""Documents that are zip archives: Word files and electronic books."""
