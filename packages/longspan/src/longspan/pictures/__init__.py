"""Pictures of patterns and spans, and the frame of web pages."""
