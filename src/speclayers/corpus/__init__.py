"""The prompts a study generates from and the questions it measures on."""
