"""Who may be served, and when: limits and budgets, and the fair queue before the engine."""
