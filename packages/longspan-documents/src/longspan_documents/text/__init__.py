"""Documents of any format as text, blocks and passages."""
