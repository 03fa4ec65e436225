"""Model architectures, one file per ``model_type``; `decoder` holds what they share."""
