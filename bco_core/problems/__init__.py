"""Decision problems: the protocol in ``base``, one problem kind a file, and the ``registry`` of them."""
