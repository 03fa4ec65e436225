"""What a checkpoint says of its embeddings and scores."""
