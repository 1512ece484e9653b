"""The cost of paid judges: prices, budget, ledger, response cache."""
