"""Where each table should live, and how many machines a model needs."""
