"""Choosing layers from measured geometry."""
