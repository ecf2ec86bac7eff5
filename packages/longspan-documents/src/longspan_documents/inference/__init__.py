"""A document in, a result out: summaries, answers, passages, labels and vectors."""
