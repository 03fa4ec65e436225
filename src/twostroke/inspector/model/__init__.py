"""The page Model and the arithmetic of the page KV: layers, bytes, the roofline of steps."""
