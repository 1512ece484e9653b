"""Commands about machines: is this one set up, and what would a recipe need."""
