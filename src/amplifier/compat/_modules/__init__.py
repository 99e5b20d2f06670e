"""Published modules in sessions: recognized, adapted, cancelled, and refused on trio where they need asyncio."""
