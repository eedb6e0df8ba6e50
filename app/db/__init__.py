"""The database: engine and sessions, tables, and arrays stored as checked blobs."""
