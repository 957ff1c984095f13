"""Where threads are kept: lines of bytes under keys. One module or folder a store."""
