"""The version of the three packages, which their builds read from here."""

__version__ = "1.0.0rc1"
