"""Rules of the contract on what was recorded, and series of calls."""
