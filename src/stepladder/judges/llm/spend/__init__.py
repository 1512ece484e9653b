"""What a paid judge costs: prices, budget, ledger, cached responses."""
