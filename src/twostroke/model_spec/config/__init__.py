"""What a `config.json` says of layers: one file for each part of them."""
