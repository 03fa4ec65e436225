"""The paged KV cache's bookkeeping: which block holds which tokens of which request.

It deals in integers only, not in tensors.
"""
