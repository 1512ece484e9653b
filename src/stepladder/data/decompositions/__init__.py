"""Gold decompositions, derived from what a data set annotates."""
