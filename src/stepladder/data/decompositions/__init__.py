"""Gold decompositions, derived from the annotation of a data set."""
