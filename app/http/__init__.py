"""HTTP plumbing: errors, middleware, security, repeatable requests, and what all resources share."""
