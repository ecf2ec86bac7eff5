"""Memory and time of a model before it is built.

`longspan.planning.plan.make_plan` computes every choice of precision, checkpointing and mechanism for a model that
`longspan.planning.source.open_planned` reads from a folder or a recipe.
"""
