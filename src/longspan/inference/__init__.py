"""A model folder and a document in, a result out."""
