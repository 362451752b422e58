"""Pure numerics of the layers: token filter, matrix entropy, Gram sums, CKA, turning points."""
