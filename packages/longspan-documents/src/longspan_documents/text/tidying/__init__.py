"""Steps that classify the blocks of a document before its sentences are segmented; `reading` defines their order."""
