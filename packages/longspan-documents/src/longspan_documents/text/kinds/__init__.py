"""Every kind of file that is read: one small file for each, and one line of `longspan_documents.text.kinds.table`."""
