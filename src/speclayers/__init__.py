"""Which layers of a language model should feed its speculative drafter, answered by measurement."""
