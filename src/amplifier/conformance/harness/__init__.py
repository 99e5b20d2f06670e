"""What checks are built with: a mounted module, typical use of it, snapshots of resources, scripted services and turns."""
