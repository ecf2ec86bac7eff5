"""Where sentences end, and what scripts and abbreviations tell of it."""
