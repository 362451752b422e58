"""One file a selector, found by its name: `SELECTOR` in it is all that is needed."""
