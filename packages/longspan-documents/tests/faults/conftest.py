from fault_fixtures import check_fault, made_checkpoints, made_recipe, right_recipe

__all__ = ["check_fault", "made_checkpoints", "made_recipe", "right_recipe"]
