"""Session, coordinator and hooks in their published form."""
