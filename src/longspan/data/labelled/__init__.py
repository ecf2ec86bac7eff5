"""Documents with one label each: rows, the files and folders they come from, cleaning, and made-up ones."""
