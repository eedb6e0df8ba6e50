"""What can be done with the service, as steps: one module for each kind of object, and the whole journey."""
