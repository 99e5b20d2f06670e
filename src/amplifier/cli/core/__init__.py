"""What every command uses: exit codes, error messages, the list of installed modules."""
