"""The published session, coordinator and hook registry: façades over the native ones, with which they share everything."""
