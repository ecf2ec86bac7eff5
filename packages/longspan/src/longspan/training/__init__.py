"""Training and evaluation: one recipe (a YAML file) is one experiment, run by Hugging Face's Trainer."""
