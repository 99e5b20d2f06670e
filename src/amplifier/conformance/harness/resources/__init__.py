"""What a module uses of the process: threads, processes, files, directories, log records."""
