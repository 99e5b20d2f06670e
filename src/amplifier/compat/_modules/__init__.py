"""Published modules in sessions: recognized, adapted, cancelled the published way."""
