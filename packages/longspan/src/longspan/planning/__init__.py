"""How much memory and time a model will need, before it is made.

`longspan.planning.plan.make_plan` counts every choice of precision, checkpointing and mechanism for a model that
`longspan.planning.source.open_planned` reads from a folder or a recipe.
"""
