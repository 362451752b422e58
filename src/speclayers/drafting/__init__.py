"""Drafters: the EAGLE-3 head with its training, draft trees, and the training-free ones."""
