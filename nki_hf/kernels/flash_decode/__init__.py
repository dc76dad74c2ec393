"""flash_decode: attention of a few query rows against a long cache, which is read once as it lies."""
