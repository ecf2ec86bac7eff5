"""PDF files, read with PDFium: lines with their positions on the page, in reading order, as blocks of a document."""
