"""Language models: families whose data are texts."""
