"""Pure parts of the router: bytes and values in, typed requests, replies and errors out."""
