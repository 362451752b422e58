"""Drafters that need no head, a file each; the file's name is the drafter's."""
