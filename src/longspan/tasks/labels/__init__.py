"""Labels of texts: rows → features, accuracy."""
