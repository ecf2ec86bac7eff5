"""Lengthening of models: the mechanism of each layer, the parity check on short inputs, the report."""
