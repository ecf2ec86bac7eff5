"""One table per family of published models: how its names and fields become ours."""
