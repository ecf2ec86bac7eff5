"""The version of the package, on the ground floor, so that runs and the command line can name it."""

__version__ = "0.3.0"
