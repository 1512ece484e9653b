"""Credit assignment: which step of which episode earns what. `credit_group` is the entry, `base` has the interface."""
