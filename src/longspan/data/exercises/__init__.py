"""Exercises: short texts with one right answer each, made up or read."""
