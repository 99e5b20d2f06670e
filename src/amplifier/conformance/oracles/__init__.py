"""What checks judge by: rules of the contract on what was recorded, and what is left of a module."""
