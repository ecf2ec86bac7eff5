"""Sentence embeddings that a small long-document encoder learns from the vectors of a large one.

`rows` reads texts with the vectors of their sentences, which a teacher made once; `task` trains on them. The head,
`longspan.models.heads.sentence_embedding`, is one that the bundled encoder has too.
"""
