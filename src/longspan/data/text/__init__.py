"""Documents of any format as text, sentences and chunks."""
