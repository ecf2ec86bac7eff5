"""Tasks on dialogues: pre-training by denoising a window, and where topics begin."""
