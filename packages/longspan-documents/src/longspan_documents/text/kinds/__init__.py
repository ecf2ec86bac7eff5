"""The supported kinds of files: one small module for each, and one line of `longspan_documents.text.kinds.table`."""
