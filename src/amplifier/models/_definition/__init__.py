"""How a model class is made: base classes, decorator, field types, problems."""
