"""Entity types and relations of an Atlas world, as data."""
