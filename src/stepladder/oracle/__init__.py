"""Everything that knows gold decompositions: the oracle engine, the step judge, corruptions."""
