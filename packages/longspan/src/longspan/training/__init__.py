"""Training and evaluation: one recipe (a YAML file) is one experiment, run by Hugging Face's Trainer.

From `longspan train` to the first step, in this order::

    recipe_file   finds the file and the one that it extends (`shipped`), applies --smoke and changes
    recipe        a `Recipe` of sections (`sections`, `optimisation`), which are checked when they are made;
                  `Recipe.runs` checks what needs the task or the model, before anything is read or written
    train         the folder of the run, or of each stage (`run_folder`); its rows, tokenizer (`tokenizers`) and model
                  (`models`, `adapters`)
    trainer       `RecipeTrainer`, its `callbacks` and its sealed `checkpoints`; for several processes, `processes`,
                  `lifelines`, `sharded_trainer` and `sequence_parallel`

After `Recipe.runs` no value of a recipe is checked again; later checks are of the machine, the rows and the weights.
`evaluate` scores a trained model, and `card` describes it.
"""
