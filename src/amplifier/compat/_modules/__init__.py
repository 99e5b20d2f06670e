"""Published modules in sessions: recognized, adapted, cancelled, and mounted on an island on trio where they need asyncio."""
