"""HTTP for all resources: errors, middleware, security, repeatable requests, shared schemas."""
