"""Distillation of sentence embeddings from a large encoder into a small long-document encoder.

`rows` reads texts with the sentence vectors that a teacher computed in advance; `task` trains on them. The head,
`longspan.models.heads.sentence_embedding`, is that of the bundled encoder.
"""
