"""Where grammars are compiled and kept: threads that tenants share, and a cache for all of them."""
