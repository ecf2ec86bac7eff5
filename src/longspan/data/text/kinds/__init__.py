"""Every kind of file that is read: one small file for each, and one line of `longspan.data.text.kinds.table`."""
