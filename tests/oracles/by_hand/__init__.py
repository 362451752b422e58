"""Comparisons with code that is on no package index, run by hand from a checkout."""
