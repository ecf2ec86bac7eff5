"""PDF files, read with PDFium: lines with their places on the page, in reading order, as blocks of a document."""
