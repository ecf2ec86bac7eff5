"""Steps that tell what the blocks of a document are before its sentences are cut; `reading` has their order."""
