"""Operations of the service as steps: one module for each kind of object, and workflows across them."""
