"""Questions with their gold annotations, and whether a found passage is one of their gold passages."""
